"""A machine of its own for each worker of pytest-xdist: processes, network, shared memory and /tmp.

raydist looks for Rays, leftovers and dead processes on the whole machine. So do its tests, which would find
those of the tests that another worker runs at the same time.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path

_UNSHARE = ["unshare", "--net", "--pid", "--mount", "--fork", "--kill-child", "--mount-proc"]
_TMP = Path("/tmp")
# The shell stays: as the machine's first process it is whom orphans fall to, and it reaps them.
_SCRIPT = """
set -e
tmp=$1 shared=$2
shift 2
ip link set lo up
mount -t tmpfs tmpfs /dev/shm
mkdir -p "$tmp"
if [ -n "$shared" ]; then
    mkdir -p "$tmp/$shared"
    mount --bind "/tmp/$shared" "$tmp/$shared"
fi
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


def python_of_machine(folder: Path, *, shared: Path) -> str:
    """Returns the command of a Python that runs in a machine of its own.

    Args:
      folder: What the machine has as /tmp.
      shared: A folder below /tmp that it shares with the others all the same: pytest's, for `tmp_path`.
    """
    below = str(shared.relative_to(_TMP)) if shared.is_relative_to(_TMP) else ""
    return shlex.join([*_UNSHARE, "sh", "-c", _SCRIPT, "sh", str(folder), below, sys.executable])
