"""Evidence: gathers what a run's record contains of its code, versions and hosts."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raydist.errors import StorageError
from raydist.runtime.host.git import GitQuestion
from raydist.runtime.task.code_archive import omitted_from_copy, without
from raydist.spec.job import JobSpec
from raydist.spec.tasks import TaskType
from raydist.storage.provenance import CodeRecord, Environment

if TYPE_CHECKING:
    from raydist.runtime.task.greeting import Hello
    from raydist.storage.run_folder import RunFolder
    from raydist.storage.run_record import RunRecord

logger = logging.getLogger(__name__)

# The packages that compute.
_COMPUTING = ("tensorflow", "keras", "tf-keras", "tf_keras", "numpy")
# How long the end of a run waits for the copy of its code, which is stored while it starts.
_COPY_TIMEOUT_S = 60.0


@contextlib.contextmanager
def traced_code(code: bytes | None, job: JobSpec) -> Iterator[Callable[[], CodeRecord | None]]:
    """Finds out where the code comes from while the block runs; call what it yields to have the answer.

    Args:
      code: What `code_archive.pack` returned of the job's folder; None ships nothing, and the answer is None.
    """
    if code is None or job.working_dir is None:
        yield lambda: None
        return
    with contextlib.closing(GitQuestion.ask(job.working_dir)) as question:
        record = CodeRecord(
            digest=hashlib.sha256(code).hexdigest(),
            num_bytes=len(code),
            omitted=omitted_from_copy(code, Path(job.working_dir), env_file=job.env_file),
        )

        def answer() -> CodeRecord:
            git = question.answer()
            if git is None:
                return record
            return dataclasses.replace(record, commit=git.commit, branch=git.branch, dirty=git.is_dirty)

        yield answer


class Evidence:
    """What is known of a run so far. `facts` may be called from another thread than the rest."""

    def __init__(
        self,
        code: CodeRecord | None,
        *,
        before: RunRecord | None = None,
        has_same_bits: bool = False,
    ) -> None:
        """Takes the code that travels, and the record of the run that is resumed.

        Args:
          has_same_bits: Whether the run is to have the same bits wherever it continues.
        """
        self._code = code
        self._environment = Environment() if before is None else before.environment
        self._versions: Mapping[str, str] = {} if before is None else before.versions
        self._bits = _Bits(self._versions, self._environment) if has_same_bits else None
        self._copying: threading.Thread | None = None

    def take(self, hello: Hello) -> None:
        """Takes what a task reports of its host, the chief also of what is installed there."""
        if self._bits is not None:
            self._bits.take(hello)
        if hello.machine is not None:
            self._environment = self._environment.with_host(hello.host, hello.host_name, hello.machine)
        self._versions = hello.packages or self._versions

    def notes(self) -> tuple[str, ...]:
        """Returns a sentence for each change on which the bits of the results depend, all so far."""
        return () if self._bits is None else tuple(self._bits.notes)

    def keep(self, code: bytes | None, folder: RunFolder) -> None:
        """Stores the copy of the code in the background, once, without what .gitignore names."""
        if code is not None and self._code is not None and self._copying is None:
            arguments = (code, self._code, folder)
            self._copying = threading.Thread(
                target=self._copy, args=arguments, name="raydist-code", daemon=True
            )
            self._copying.start()

    def facts(self, *, is_final: bool = False) -> dict[str, Any]:
        """Returns fields of RunRecord; the final ones wait for the copy of the code."""
        if is_final and self._copying is not None:
            self._copying.join(_COPY_TIMEOUT_S)
        return {"code": self._code, "environment": self._environment, "versions": self._versions}

    def _copy(self, code: bytes, record: CodeRecord, folder: RunFolder) -> None:
        try:
            file = folder.keep_code(without(code, record.omitted))
        except StorageError as error:  # the run continues without the copy
            logger.warning("the code of the run could not be kept: %s", error)
            return
        self._code = dataclasses.replace(record, file=file)


class _Bits:
    """What the bits of a run's results depend on, and how that has changed.

    Attributes:
      notes: A sentence for each change.
    """

    def __init__(self, versions: Mapping[str, str], environment: Environment) -> None:
        """Takes the versions and hosts before a resume."""
        self._versions = versions
        self._kinds = {(group.machine.cpu, group.machine.gpus) for group in environment.hosts}
        self.notes: list[str] = []

    def take(self, hello: Hello) -> None:
        """Takes what a task that computes reports of its host."""
        if hello.task.task_type not in (TaskType.CHIEF, TaskType.WORKER):
            return
        was, now = self._versions, hello.packages
        changed = [name for name in _COMPUTING if name in was and name in now and was[name] != now[name]]
        if changed:
            listed = ", ".join(f"{name} {was[name]} before and {now[name]} now" for name in changed)
            self._note(
                f"the run continues with other versions ({listed}), so its bits may differ from here on"
            )
        if hello.machine is None:
            return
        kind = (hello.machine.cpu, hello.machine.gpus)
        if self._kinds and kind not in self._kinds:
            named = ", ".join([str(hello.machine.cpu), *hello.machine.gpus])
            self._note(
                f"the run computes on {named}, too, which it had not before, so its bits may depend on where "
                "it runs"
            )
        self._kinds.add(kind)

    def _note(self, sentence: str) -> None:
        if sentence not in self.notes:
            self.notes.append(sentence)
