"""MlflowLink: what a run's folder keeps of its run in MLflow, so that a resume goes on with the same one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from raydist.spec.secrecy import dump_plain_json
from raydist.storage.run_storage import RunStorage


@dataclass(frozen=True, kw_only=True)
class MlflowLink:
    """Which run in MLflow stands for a run.

    Attributes:
      uri: The tracking server, without credentials.
      taken: As NewValues has it.
    """

    uri: str
    run_id: str
    taken: Mapping[str, float] = field(default_factory=dict)


def read_link(storage: RunStorage) -> MlflowLink | None:
    """Returns the link of a run; None for a run without one, or where it is damaged. Raises StorageError."""
    if not storage.exists(storage.mlflow):
        return None
    try:
        found = json.loads(storage.read_bytes(storage.mlflow))
        taken = {str(source): float(at_s) for source, at_s in found["taken"].items()}
        return MlflowLink(uri=str(found["uri"]), run_id=str(found["run_id"]), taken=taken)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def write_link(storage: RunStorage, link: MlflowLink) -> None:
    """Replaces the link of a run; raises StorageError."""
    storage.hasty().write_text(storage.mlflow, dump_plain_json(asdict(link)))
