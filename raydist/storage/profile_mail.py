"""Requests for a profile of a task, and its answers, as files on storage.

`raydist profile` may run on any host that reads the run's storage, and a busy task cannot be called. So the
request is a file, a signal tells the task to look for it, and the answer is a file as well. Whoever asked
deletes both.
"""

from __future__ import annotations

import json
import secrets
import time
from dataclasses import dataclass
from typing import TypeVar

from raydist.errors import StorageError
from raydist.outcome.codec import as_plain, from_plain
from raydist.spec.tasks import TaskId
from raydist.storage.limits import parse_json
from raydist.storage.run_storage import RunStorage

Kind = TypeVar("Kind")

_REQUEST = ".request.json"
_ANSWER = ".answer.json"


@dataclass(frozen=True, kw_only=True)
class ProfileRequest:
    """What is asked of a task.

    Attributes:
      steps: How many steps to profile at least.
      timeout_s: How long somebody waits for the profile.
    """

    steps: int
    timeout_s: float


@dataclass(frozen=True, kw_only=True)
class ProfileAnswer:
    """What came of it.

    Attributes:
      error: Why there is no profile, as the end of a sentence that begins with the task; None for a profile.
      first_step: The first step that it shows. `last_step`: the last one, which it shows whole too.
      calls: How many calls those steps took: several steps can be packed into one.
      seconds: How long they took.
      profile: URI of the profile's folder.
      is_cut: Whether the training ended before all steps that were asked for.
    """

    error: str | None = None
    first_step: int = 0
    last_step: int = 0
    calls: int = 0
    seconds: float = 0.0
    profile: str = ""
    is_cut: bool = False


def write_request(storage: RunStorage, task: TaskId, request: ProfileRequest) -> str:
    """Writes a request; returns its name, by which the answer is found."""
    name = f"{int(1000 * time.time()):014d}-{secrets.token_hex(4)}"
    storage.write_text(_key(storage, task, name + _REQUEST), json.dumps(as_plain(request)))
    return name


def read_requests(storage: RunStorage, task: TaskId) -> dict[str, ProfileRequest]:
    """Returns those without an answer by their names, in the order in which they were written.

    One whose time was up when the newest one was written is left out: whoever wrote it was killed.
    """
    names = storage.list_names(storage.task_profile_mail(task))
    waiting = [name.removesuffix(_REQUEST) for name in names if name.endswith(_REQUEST)]
    found = {
        name: _read(storage, _key(storage, task, name + _REQUEST), ProfileRequest)
        for name in waiting
        if name + _ANSWER not in names
    }
    newest_s = max(map(_written_at_s, found), default=0.0)
    return {
        name: request
        for name, request in found.items()
        if _written_at_s(name) + request.timeout_s >= newest_s
    }


def write_answer(storage: RunStorage, task: TaskId, name: str, answer: ProfileAnswer) -> None:
    """Answers a request, unless whoever wrote it has given up and deleted it."""
    if storage.exists(_key(storage, task, name + _REQUEST)):
        storage.write_text(_key(storage, task, name + _ANSWER), json.dumps(as_plain(answer)))


def read_answer(storage: RunStorage, task: TaskId, name: str) -> ProfileAnswer | None:
    """Returns the answer to a request; None as long as there is none."""
    key = _key(storage, task, name + _ANSWER)
    return _read(storage, key, ProfileAnswer) if storage.exists(key) else None


def delete_mail(storage: RunStorage, task: TaskId, name: str) -> None:
    """Deletes a request and its answer."""
    for ending in (_REQUEST, _ANSWER):
        storage.delete(_key(storage, task, name + ending))
    storage.remove_empty_folder(storage.task_profile_mail(task))
    storage.remove_empty_folder(storage.profile_mail)


def _written_at_s(name: str) -> float:
    return int(name.partition("-")[0]) / 1000


def _key(storage: RunStorage, task: TaskId, name: str) -> str:
    return f"{storage.task_profile_mail(task)}/{name}"


def _read(storage: RunStorage, key: str, kind: type[Kind]) -> Kind:
    try:
        found: Kind = from_plain(parse_json(storage.read_bytes(key)), kind)
    except ValueError as error:
        raise StorageError(f"{storage.uri(key)} is damaged: {error}; ask for the profile again") from error
    return found
