"""MlflowTracker: keeps a run in MLflow up to date, from the run's record and its metrics on storage."""

from __future__ import annotations

import contextlib
import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from raydist.errors import StorageError
from raydist.spec.secrecy import dump_plain_json, redact
from raydist.storage.limits import parse_json
from raydist.storage.run_record import RunRecord
from raydist.storage.run_storage import RunStorage
from raydist.tracking.mlflow_client import (
    BATCH,
    MlflowRun,
    NewValues,
    RunGoneError,
    TrackingError,
    import_mlflow,
)
from raydist.tracking.tracker import Tracker

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class MlflowLink:
    """Which run in MLflow stands for a run.

    Attributes:
      uri: The tracking server, without credentials.
      taken: See NewValues.
    """

    uri: str
    run_id: str
    taken: Mapping[str, float] = field(default_factory=dict)


def read_link(storage: RunStorage) -> MlflowLink | None:
    """Returns the link of a run; None for a run without one, or where it is damaged. Raises StorageError."""
    if not storage.exists(storage.mlflow):
        return None
    try:
        found = parse_json(storage.read_bytes(storage.mlflow))
        taken = {str(source): float(at_s) for source, at_s in found["taken"].items()}
        return MlflowLink(uri=str(found["uri"]), run_id=str(found["run_id"]), taken=taken)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def write_link(storage: RunStorage, link: MlflowLink) -> None:
    """Replaces the link of a run; raises StorageError."""
    storage.hasty().write_text(storage.mlflow, dump_plain_json(asdict(link)))


EVERY_S = 10.0
# How long the end of a run waits for MLflow, and how long while that takes nothing.
END_TIMEOUT_S = 60.0
SILENCE_S = 5.0
_LOOK_S = 0.1


class MlflowTracker(Tracker):
    """Tells MLflow of one run."""

    def __init__(
        self,
        uri: str,
        storage: RunStorage,
        *,
        job: str,
        every_s: float = EVERY_S,
        end_timeout_s: float = END_TIMEOUT_S,
        silence_s: float = SILENCE_S,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Takes the tracking server, the run's folder, and the job, which is the experiment's name."""
        super().__init__(thread="raydist-mlflow")
        self._uri = uri
        self._storage = storage
        self._job = job
        self._every_s = every_s
        self._end_timeout_s = end_timeout_s
        self._silence_s = silence_s
        self._clock = clock
        self._run: MlflowRun | None = None
        self._values: NewValues | None = None
        self._tags: dict[str, str] = {}
        # When MLflow took something last, or could have for the first time; None while it is imported.
        self._took_at_s: float | None = None

    def finish(self) -> str | None:
        """Waits a minute for a server that takes one thing after another, 5 s for one that takes nothing."""
        self._is_over = True
        self._wake.set()
        began_s = time.monotonic()
        while self._thread.is_alive() and not self._is_given_up:
            self._thread.join(_LOOK_S)
            now_s, took_at_s = time.monotonic(), self._took_at_s
            is_silent = took_at_s is not None and now_s - max(took_at_s, began_s) >= self._silence_s
            self._is_given_up = is_silent or now_s - began_s >= self._end_timeout_s
        if self._problem is None:
            return None
        lacks = "all of the run" if self._run is None else "the run's last values and its end"
        return (
            f"MLflow at {redact(self._uri)} lacks {lacks}: {self._problem}; "
            "`raydist metrics` has all values, and a resume with --mlflow sends them"
        )

    def _follow(self) -> None:
        with contextlib.suppress(ImportError):  # told by the first request
            import_mlflow()
        self._took()
        while not self._is_given_up:
            is_last = self._is_over
            try:
                self._sync(is_last=is_last)
                self._problem = None
            except (TrackingError, StorageError) as error:
                self._failed(str(error))
            except Exception as error:  # a bug of ours or of MLflow's: the run continues without
                logger.exception("MLflow is not told of the run any more")
                self._failed(f"{type(error).__name__}: {error}")
                return
            if is_last and self._problem is None:
                return
            if is_last:
                time.sleep(min(1.0, self._every_s))
            else:
                self._wake.wait(self._every_s)

    def _took(self) -> None:
        self._took_at_s = time.monotonic()

    def _failed(self, problem: str) -> None:
        if self._problem is None or not self._notes:
            self._note(
                f"MLflow at {redact(self._uri)} does not accept values: {problem}; the training continues, "
                "and what is missing is sent once it does"
            )
        self._problem = problem

    def _note(self, sentence: str) -> None:
        if sentence not in self._notes:
            logger.warning("%s", sentence)
        super()._note(sentence)

    def _sync(self, *, is_last: bool) -> None:
        record = self._record
        assert record is not None
        if self._run is None:
            self._run, self._values = self._open(record)
            self._took()
        run, values = self._run, self._values
        assert values is not None
        tags = tags_of(record, self._storage, job=self._job)
        changed = {name: value for name, value in tags.items() if self._tags.get(name) != value}
        if changed:
            run.set_tags(changed)
            self._took()
            self._tags |= changed
        waiting = values.read()
        for sentence in values.damages:
            self._note(f"MLflow lacks values: {sentence}")
        for start in range(0, len(waiting), BATCH):
            part = waiting[start : start + BATCH]
            run.log_values(part)
            self._took()
            values.take(len(part))
            self._keep_link(run, values)
        if is_last and record.state.is_terminal:
            run.end(record.state, at_s=self._clock())

    def _open(self, record: RunRecord) -> tuple[MlflowRun, NewValues]:
        link = read_link(self._storage)
        run = None
        if link is not None and link.uri == redact(self._uri):
            try:
                run = MlflowRun.reopen(self._uri, link.run_id)
            except RunGoneError as error:
                self._note(f"MLflow has a new run of this run, as it lacks the one before: {error}")
        values = NewValues(self._storage, taken={} if run is None or link is None else link.taken)
        if run is None:
            run = MlflowRun.create(self._uri, experiment=self._job, name=self._storage.run)
            self._keep_link(run, values)  # first: what fails from here on finds this run again
        differing = run.log_params(params_of(record))
        if differing:
            run.set_tags({f"raydist.param.{name}": value for name, value in differing.items()})
            names = ", ".join(sorted(differing))
            self._note(f"MLflow keeps the first values of the params {names}; the new ones are tags there")
        return run, values

    def _keep_link(self, run: MlflowRun, values: NewValues) -> None:
        write_link(
            self._storage, MlflowLink(uri=redact(self._uri), run_id=run.run_id, taken=dict(values.taken))
        )


def params_of(record: RunRecord) -> dict[str, str]:
    """Returns the job's params as texts, secrets as `***`; those inside of others as `optimizer.name`."""
    plain = json.loads(dump_plain_json(record.spec.get("params", {})))
    return {name: value if isinstance(value, str) else json.dumps(value) for name, value in _flat(plain)}


def tags_of(record: RunRecord, storage: RunStorage, *, job: str) -> dict[str, str]:
    """Returns what else MLflow is told of a run: where it is kept, and how far it is."""
    code = record.code
    facts = {
        "raydist.run": record.run,
        "raydist.state": record.state.value,
        "raydist.strategy": record.strategy,
        "raydist.tasks": len(record.tasks),
        "raydist.attempts": record.attempts,
        "raydist.steps": record.steps,
        "raydist.storage": storage.uri(storage.run),
        "raydist.metrics": storage.uri(storage.metrics),
        "raydist.checkpoint": record.checkpoint,
        "raydist.export": storage.uri(storage.export) if _is_exported(record, storage) else None,
        "raydist.error": record.error and record.error.message,
        "mlflow.source.name": job,
        "mlflow.source.type": "JOB",
        "mlflow.source.git.commit": code and code.commit,
        "mlflow.source.git.branch": code and code.branch,
        "raydist.code.dirty": code and code.dirty,
        "raydist.code.digest": code and code.digest,
    }
    known = {name: value for name, value in facts.items() if value is not None and value != ""}
    plain = json.loads(dump_plain_json(known))
    return {name: value if isinstance(value, str) else json.dumps(value) for name, value in plain.items()}


def _is_exported(record: RunRecord, storage: RunStorage) -> bool:
    return record.state.is_terminal and bool(storage.list_names(storage.export))


def _flat(params: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in params.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
