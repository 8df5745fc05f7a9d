"""A machine of its own for each worker of pytest-xdist: processes, network, shared memory and /tmp.

raydist looks for Rays, leftovers and dead processes on the whole machine. So do its tests, which would find
those of the tests that another worker runs at the same time.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path

_UNSHARE = ["unshare", "--net", "--pid", "--mount", "--fork", "--kill-child", "--mount-proc"]
_TMP = Path("/tmp")
# The shell stays: as the machine's first process it is whom orphans fall to, and it reaps them.
_SCRIPT = """
set -e
tmp=$1
shift
ip link set lo up
mount -t tmpfs tmpfs /dev/shm
mkdir -p "$tmp"
while [ "$1" != -- ]; do
    mkdir -p "$tmp/$1"
    mount --bind "/tmp/$1" "$tmp/$1"
    shift
done
shift
mount --rbind "$tmp" /tmp
set +e
"$@"
exit $?
"""


@cache
def why_unavailable() -> str | None:
    """Returns why no such machine can be made here; None where it can."""
    command = [*_UNSHARE, "sh", "-c", "ip link set lo up && mount -t tmpfs tmpfs /dev/shm"]
    try:
        tried = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except OSError as error:
        return str(error)
    return None if tried.returncode == 0 else tried.stderr.strip() or f"exit code {tried.returncode}"


def python_of_machine(folder: Path, *, shared: Iterable[Path]) -> str:
    """Returns the command of a Python that runs in a machine of its own.

    Args:
      folder: What the machine has as /tmp.
      shared: Folders that it shares with the others, also those below /tmp. Python's own are among them.
    """
    needed = (*shared, Path(sys.prefix), Path(sys.base_prefix))
    below = [str(path.relative_to(_TMP)) for path in dict.fromkeys(needed) if path.is_relative_to(_TMP)]
    return shlex.join([*_UNSHARE, "sh", "-c", _SCRIPT, "sh", str(folder), *below, "--", sys.executable])
