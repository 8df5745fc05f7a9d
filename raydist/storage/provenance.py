"""What ran: a run's code, versions and hosts, as run.json keeps them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from raydist.errors import MistakeError, StorageError
from raydist.storage.limits import check_code

if TYPE_CHECKING:
    from raydist.storage.run_storage import RunStorage


def _check_texts(value: object) -> None:
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise ValueError("write an object of strings")


# A record has hundreds of versions, and a list of runs reads thousands of records: they are checked as one.
Versions: TypeAlias = Annotated[Any, _check_texts]


@dataclass(frozen=True, kw_only=True)
class CodeRecord:
    """The code that travelled with a run.

    Attributes:
      digest: SHA-256 of the packed working directory.
      num_bytes: Size of the packed working directory.
      commit: The git commit that was checked out; None outside of a repository, or if git did not answer.
      branch: The branch of `commit`; None without one.
      dirty: Whether files of the working directory differ from `commit`; None without one.
      file: The kept copy, a path below the run's folder; None as long as none is stored.
      omitted: Files and folders (with `/` at the end) that travelled but are not in the copy: those that
        .gitignore names, and the env_file.
    """

    digest: str
    num_bytes: int
    commit: str | None = None
    branch: str | None = None
    dirty: bool | None = None
    file: str | None = None
    omitted: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What a host is made of; None or empty for what it does not tell.

    Attributes:
      system: Kernel and architecture.
      cpu: Model of the CPUs.
      memory_bytes: Rounded to whole GiB, so that hosts of one kind are alike.
      gpus: The model of each GPU.
    """

    system: str
    cpu: str | None = None
    num_cpus: int | None = None
    memory_bytes: int | None = None
    gpus: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class HostGroup:
    """Hosts of one kind.

    Attributes:
      hosts: Address as Ray knows it to host name.
    """

    machine: Machine
    hosts: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Environment:
    """The hosts that a run's tasks had, those of earlier attempts included."""

    hosts: tuple[HostGroup, ...] = ()

    def with_host(self, address: str, name: str, machine: Machine) -> Environment:
        groups = {group.machine: group.hosts for group in self.hosts}
        groups[machine] = {**groups.get(machine, {}), address: name}
        hosts = tuple(HostGroup(machine=machine, hosts=hosts) for machine, hosts in groups.items())
        return replace(self, hosts=hosts)


def read_kept_code(storage: RunStorage, code: CodeRecord | None) -> bytes:
    """Returns the copy of a run's code, as a zip.

    Args:
      code: What the run's record says of it.

    Raises:
      MistakeError: The run has no copy. StorageError: It is damaged, or cannot be read.
    """
    if code is None or code.file is None:
        raise MistakeError(
            f"run {storage.run} keeps no copy of its code: it is of an older raydist, or ended before "
            "the copy was stored; submit the job from its own folder"
        )
    # Of what the record says only the name counts, as it could lead anywhere.
    digest = PurePosixPath(code.file).stem
    key = storage.kept_code(digest)
    if not storage.exists(key):
        raise StorageError(f"{storage.uri(key)} is missing; it was the copy of the code of run {storage.run}")
    content = storage.read_bytes(key)
    if digest != hashlib.sha256(content).hexdigest():
        raise StorageError(f"{storage.uri(key)} is damaged: its content does not have the digest in its name")
    try:
        check_code(content)
    except ValueError as error:
        raise StorageError(f"{storage.uri(key)} is damaged: {error}") from error
    return content
