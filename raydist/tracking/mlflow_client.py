"""The calls of MLflow's client that raydist makes. MLflow is imported here only, by a run that uses it."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import platform
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from raydist.errors import MistakeError
from raydist.metrics.reading import read_new
from raydist.outcome.status import RunState, Scope
from raydist.spec.secrecy import redact, redact_text
from raydist.storage.filesystem import FoundFile
from raydist.storage.run_storage import RunStorage

_EVALUATOR = "evaluator/"


@dataclass(frozen=True, kw_only=True)
class Value:
    """A value that holds for the whole run.

    Attributes:
      source: Whose it is, such as `0 chief/0`: the attempt and the task.
      name: As it was reported; an evaluator's begins with `evaluator/`.
      wall_time: Unix time, seconds.
    """

    source: str
    name: str
    value: float
    step: int
    wall_time: float


class NewValues:
    """Reads the values that have not been taken yet, each file of them once, and again where it has grown.

    Attributes:
      taken: By source, the time of the newest value that was taken. What one report holds has one time.
      damages: Sentences about files that cannot be read.
    """

    def __init__(self, storage: RunStorage, *, taken: Mapping[str, float]) -> None:
        self._storage = storage
        self._files: frozenset[FoundFile] = frozenset()
        self._waiting: list[Value] = []
        self.taken = dict(taken)
        self.damages: list[str] = []

    def read(self) -> list[Value]:
        """Returns all values that are not taken, the oldest first; raises StorageError."""
        found = read_new(
            self._storage,
            scope=Scope.GLOBAL,
            known=self._files,
            on_damage=lambda error: self.damages.append(str(error)),
        )
        newest = dict(self.taken)
        for value in self._waiting:
            newest[value.source] = max(newest.get(value.source, 0.0), value.wall_time)
        # What is older is there again, in a file that has grown.
        new = [value for value in map(_value, found.rows) if value.wall_time > newest.get(value.source, 0.0)]
        self._files = found.files
        self._waiting = sorted([*self._waiting, *new], key=lambda value: value.wall_time)
        return list(self._waiting)

    def take(self, count: int) -> None:
        """Notes that the first `count` of what `read` returned have been told."""
        for value in self._waiting[:count]:
            self.taken[value.source] = max(self.taken.get(value.source, 0.0), value.wall_time)
        del self._waiting[:count]


def _value(row: Mapping[str, object]) -> Value:
    task, name = str(row["task"]), str(row["name"])
    return Value(
        source=f"{row['attempt']} {task}",
        name=_EVALUATOR + name if task.startswith(_EVALUATOR) else name,
        value=float(row["value"]),  # type: ignore[arg-type]
        step=int(row["step"]),  # type: ignore[call-overload]
        wall_time=float(row["wall_time"]),  # type: ignore[arg-type]
    )


# What MLflow takes at most, in one batch and of one text.
BATCH = 1000
_MAX_PARAMS = 100
_MAX_NAME = 250
_MAX_VALUE = 6000
_FORBIDDEN = re.compile(r"[^\w\-. :/]", re.ASCII)
# Its own limits are minutes; raydist tries again by itself. And it reports its use to its makers.
_DEFAULTS = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}
_STATUS = {RunState.SUCCEEDED: "FINISHED", RunState.FAILED: "FAILED", RunState.CANCELLED: "KILLED"}
_RUNNING = "RUNNING"
_SERVERS = ("http", "https")
_DATABASES = ("sqlite", "postgresql", "mysql", "mssql")


class TrackingError(Exception):
    """MLflow did not take something; one sentence without credentials."""


class RunGoneError(TrackingError):
    """The server has no such run, or it was deleted."""


def check_tracking_uri(uri: str) -> None:
    """Raises MistakeError unless MLflow's client is installed on this host and takes such a URI.

    No server or database is asked: a run continues without them.
    """
    if importlib.util.find_spec("mlflow") is None:
        raise MistakeError(
            f"mlflow is given, but MLflow's client is not installed on host {platform.node()}; "
            "`pip install 'raydist[mlflow]'` installs it"
        )
    scheme = uri.partition(":")[0].partition("+")[0]
    if scheme in _DATABASES and importlib.util.find_spec("sqlalchemy") is None:
        raise MistakeError(
            f"mlflow is {redact(uri)!r}, but the client of raydist[mlflow] writes to servers alone; "
            f"`pip install mlflow` on host {platform.node()} installs what writes to a database"
        )
    if scheme in (*_SERVERS, *_DATABASES):
        return  # without the seconds that importing MLflow takes
    try:
        _client(uri)
    except Exception as error:  # MLflow raises errors of many classes for a URI that it does not take
        schemes = getattr(error, "supported_uri_schemes", None)
        reason = f"it knows {', '.join(filter(None, schemes))}" if schemes else _sentence_of(error)
        raise MistakeError(
            f"mlflow is {redact(uri)!r}, which MLflow does not take as a tracking URI: {reason}"
        ) from error


class MlflowRun:
    """One run in MLflow. Each method raises TrackingError.

    Attributes:
      run_id: As MLflow names it.
    """

    def __init__(self, client: Any, run_id: str, params: Mapping[str, str]) -> None:
        self._client = client
        self._params = dict(params)
        self.run_id = run_id

    @classmethod
    def create(cls, uri: str, *, experiment: str, name: str) -> MlflowRun:
        """Makes a run in the experiment of that name, which is made unless it is there."""
        with _tracking_errors():
            client = _client(uri)
            known = client.get_experiment_by_name(experiment)
            number = client.create_experiment(experiment) if known is None else known.experiment_id
            return cls(client, client.create_run(number, run_name=name).info.run_id, {})

    @classmethod
    def reopen(cls, uri: str, run_id: str) -> MlflowRun:
        """Continues with a run, which is running again; RunGoneError where it was deleted."""
        with _tracking_errors():
            client = _client(uri)
            run = client.get_run(run_id)
            if run.info.lifecycle_stage == "deleted":
                raise RunGoneError(f"run {run_id} was deleted")
            client.update_run(run_id, status=_RUNNING)
            return cls(client, run_id, run.data.params)

    def log_params(self, params: Mapping[str, str]) -> dict[str, str]:
        """Adds params, and returns those that MLflow has with another value: it changes none."""
        from mlflow.entities import Param

        wanted = {metric_name(name): value[:_MAX_VALUE] for name, value in params.items()}
        new = [Param(name, value) for name, value in wanted.items() if name not in self._params]
        for start in range(0, len(new), _MAX_PARAMS):
            with _tracking_errors():
                self._client.log_batch(self.run_id, params=new[start : start + _MAX_PARAMS])
        self._params |= {param.key: param.value for param in new}
        return {name: value for name, value in wanted.items() if self._params[name] != value}

    def set_tags(self, tags: Mapping[str, str]) -> None:
        from mlflow.entities import RunTag

        batch = [RunTag(name, value[:_MAX_VALUE]) for name, value in tags.items()]
        with _tracking_errors():
            self._client.log_batch(self.run_id, tags=batch)

    def log_values(self, values: Sequence[Value]) -> None:
        """Adds at most BATCH values."""
        from mlflow.entities import Metric

        batch = [
            Metric(metric_name(one.name), one.value, int(1000 * one.wall_time), one.step) for one in values
        ]
        with _tracking_errors():
            self._client.log_batch(self.run_id, metrics=batch)

    def end(self, state: RunState, *, at_s: float) -> None:
        """Tells how the run has ended, at a Unix time in seconds."""
        with _tracking_errors():
            self._client.set_terminated(self.run_id, _STATUS[state], int(1000 * at_s))


def metric_name(name: str) -> str:
    """Returns a name as MLflow takes it: what it forbids becomes `_`."""
    plain = _FORBIDDEN.sub("_", name)[:_MAX_NAME]
    is_path = plain == posixpath.normpath(plain) and not plain.startswith(("/", ".."))
    return plain if is_path and plain != "." else plain.replace("/", "_").replace(".", "_") or "_"


def _client(uri: str) -> Any:
    import_mlflow()
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=uri)


def import_mlflow() -> None:
    """Imports MLflow, which takes seconds, with raydist's limits for its requests. Idempotent."""
    for name, value in _DEFAULTS.items():
        os.environ.setdefault(name, value)
    importlib.import_module("mlflow")


@contextlib.contextmanager
def _tracking_errors() -> Iterator[None]:
    """Raises MLflow's errors of the block as TrackingError."""
    try:
        yield
    except TrackingError:
        raise
    except Exception as error:  # MLflow, its transports and its stores may raise anything
        is_gone = getattr(error, "error_code", None) == "RESOURCE_DOES_NOT_EXIST"
        raise (RunGoneError if is_gone else TrackingError)(_sentence_of(error)[:500]) from error


def _sentence_of(error: Exception) -> str:
    return " ".join(redact_text(str(error)).split()) or type(error).__name__
