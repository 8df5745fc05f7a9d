"""Which git commit a folder is at. git is asked in the background, as a run's start does not wait for it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import subprocess

# A repository of millions of files takes longer; its run continues without the answer.
TIMEOUT_S = 5.0

_COMMAND = ("git", "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "--no-optional-locks")
_STATUS = ("status", "--porcelain=v2", "--branch", "--untracked-files=normal", "--ignore-submodules=dirty")
# What does not travel with a run is not a change of its code.
_OUTSIDE = (":(exclude,glob)**/raydist_runs/**", ":(exclude,glob)**/__pycache__/**")
# Set by a git that runs this program, as in a hook; they name another repository.
_FOREIGN = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX")


@dataclass(frozen=True, kw_only=True)
class GitState:
    """The commit that is checked out.

    Attributes:
      branch: None where none is checked out.
      is_dirty: Whether files of the folder differ from the commit, new ones included.
    """

    commit: str
    branch: str | None
    is_dirty: bool


class GitQuestion:
    """A git that runs alongside the run's start."""

    def __init__(self, process: subprocess.Popen[bytes] | None) -> None:
        self._process = process

    @classmethod
    def ask(cls, folder: str) -> GitQuestion:
        """Starts git; it runs no hooks and writes nothing. Without git the answer is None."""
        import subprocess

        environ = {name: value for name, value in os.environ.items() if name not in _FOREIGN}
        try:
            process = subprocess.Popen(
                [*_COMMAND, *_STATUS, "--", ".", *_OUTSIDE],
                cwd=folder,
                env={**environ, "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        except OSError:  # no git
            return cls(None)
        return cls(process)

    def answer(self, *, timeout_s: float = TIMEOUT_S) -> GitState | None:
        """Returns the state; None outside of a repository, and if git takes longer than `timeout_s`."""
        import subprocess

        if self._process is None:
            return None
        try:
            out, _ = self._process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            return None
        finally:
            self.close()
        return parse_status(out.decode(errors="replace")) if self._process.returncode == 0 else None

    def close(self) -> None:
        """Ends git; harmless when it has ended."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        if self._process is not None and self._process.stdout is not None:
            self._process.stdout.close()


def parse_status(text: str) -> GitState | None:
    """Returns what `git status --porcelain=v2 --branch` says; None before a first commit."""
    lines = text.splitlines()
    heads = dict(line[2:].split(" ", 1) for line in lines if line.startswith("# branch."))
    commit, branch = heads.get("branch.oid", "(initial)"), heads.get("branch.head", "(detached)")
    if commit == "(initial)":
        return None
    return GitState(
        commit=commit,
        branch=None if branch == "(detached)" else branch,
        is_dirty=any(not line.startswith("#") for line in lines),
    )
