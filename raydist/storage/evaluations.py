"""EvaluationStore: what the evaluator found for the checkpoints that --keep-best chooses from."""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Mapping

from raydist.errors import StorageError
from raydist.storage.run_storage import RunStorage

logger = logging.getLogger(__name__)

# Values by the name of a checkpoint's folder; none for one that could not be read.
Evaluations = Mapping[str, Mapping[str, float]]


class EvaluationStore:
    """The evaluator's values of a run's checkpoints, in one file. Only the evaluator writes it."""

    def __init__(self, storage: RunStorage) -> None:
        self._storage = storage

    def read(self) -> Evaluations:
        """Returns all values; none where the file is damaged, because a checkpoint can be evaluated again."""
        try:
            content = self._storage.read_bytes(self._storage.evaluations)
        except StorageError as error:
            if not isinstance(error.__cause__, FileNotFoundError):
                raise
            return {}
        try:
            found: dict[str, dict[str, float]] = json.loads(content)
            return {name: dict(values) for name, values in found.items()}
        except (ValueError, TypeError, AttributeError) as error:
            logger.warning("%s is damaged: %s", self._storage.uri(self._storage.evaluations), error)
            return {}

    def add(self, name: str, values: Mapping[str, float], *, present: Collection[str]) -> None:
        """Adds the values of the checkpoint `name`, and forgets those of checkpoints not in `present`."""
        known = {one: found for one, found in self.read().items() if one in present}
        self._storage.write_bytes(
            self._storage.evaluations, json.dumps({**known, name: dict(values)}, indent=1).encode()
        )
