"""A real Slurm: its controller and two hosts, which are machines of Linux namespaces."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.support import netns
from tests.support.environ import inherited
from tests.support.netns import Machine, Network
from tests.support.records import record_of

_PROGRAMS = ("slurmctld", "slurmd", "sbatch", "munged")
_START_TIMEOUT_S = 60.0
_PRIVATE_MB = 4096  # taken when it is written to

_CONF = """
ClusterName=test
SlurmctldHost=host-1(10.77.0.1)
AuthType=auth/munge
AuthInfo=socket={disk}/munge.socket,cred_expire=5
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation={disk}/state
SlurmdSpoolDir={disk}/spool
SlurmctldPidFile={disk}/slurmctld.pid
SlurmdPidFile={disk}/slurmd.pid
SlurmctldLogFile={disk}/slurmctld.log
SlurmdLogFile={disk}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=10
NodeName=host-1 NodeAddr=10.77.0.1 CPUs=2 State=UNKNOWN
NodeName=host-2 NodeAddr=10.77.0.2 CPUs=2 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES State=UP MaxTime=INFINITE
"""


def why_unavailable() -> str | None:
    """Returns why no Slurm can be started here; None where it can."""
    missing = [name for name in _PROGRAMS if _program(name) is None]
    if missing:
        return f"{', '.join(missing)} cannot be found: apt-get install slurm-wlm munge"
    return netns.why_unavailable()


def _program(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


class Slurm:
    """Two hosts, `host-1` with the controller and `host-2`, of two CPUs each.

    Attributes:
      shared: A folder that both see at the same path.
      hosts: The machines.
    """

    def __init__(self, *, base: Path, hosts: list[Machine]) -> None:
        self.shared = base / "shared"
        self.hosts = hosts
        self._disk = base / "disk"
        self._environ = _environment(self._disk, conf=self.shared / "slurm.conf")

    @classmethod
    @contextmanager
    def started(cls) -> Iterator[Slurm]:
        """Starts it; in the end nothing of it is left."""
        with ExitStack() as stack:
            base = Path(tempfile.mkdtemp(prefix="sl-"))  # short: paths of Ray's sockets are limited
            stack.callback(shutil.rmtree, base, ignore_errors=True)
            for name in ("disk", "shared"):
                (base / name).mkdir()
            network = Network.start()
            stack.callback(network.stop)
            private = {base / "disk": _PRIVATE_MB, Path("/dev/shm"): _PRIVATE_MB}
            hosts = []
            for number in (1, 2):
                hosts.append(Machine.start(f"host-{number}", private=private))
                stack.callback(hosts[-1].kill)
                network.join(hosts[-1], number=number)
            slurm = cls(base=base, hosts=hosts)
            slurm._start()
            yield slurm

    def run(self, *command: str | Path) -> str:
        """Runs a command of Slurm on host-1 and returns what it printed."""
        process = self._popen(self.hosts[0], *command, stdout=subprocess.PIPE, text=True)
        out, _ = process.communicate(timeout=60)
        assert process.returncode == 0, (command, out)
        return str(out).strip()

    def job(self, number: str) -> dict[str, str]:
        """Returns what `scontrol show job` says of a job."""
        shown = self.run("scontrol", "show", "job", number).split()
        return {key: value for key, is_there, value in (word.partition("=") for word in shown) if is_there}

    def status(self, run: str) -> dict[str, Any]:
        """Returns what `run.json` has on the shared folder."""
        return record_of(self.shared, run)

    def _start(self) -> None:
        (self.shared / "slurm.conf").write_text(_CONF.format(disk=self._disk))
        key = secrets.token_bytes(128)
        for host in self.hosts:
            disk = host.inside(self._disk)
            for name in ("state", "spool", "tmp"):
                (disk / name).mkdir()
            (disk / "key").touch(mode=0o400)
            (disk / "key").write_bytes(key)
            munge = [f"--{name}={self._disk}/{file}" for name, file in _MUNGE_FILES.items()]
            self._daemon(host, "munged", "--force", "--foreground", *munge)
            self._await((disk / "munge.socket").exists)
        self._daemon(self.hosts[0], "slurmctld", "-D")
        for host in self.hosts:
            self._daemon(host, "slurmd", "-D")
        self._await(lambda: self._idle() == "2")

    def _idle(self) -> str:
        command = ["sinfo", "--noheader", "--states=idle", "--format=%D"]
        process = self._popen(self.hosts[0], *command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        return str(process.communicate(timeout=60)[0].decode()).strip()

    def _daemon(self, host: Machine, name: str, *arguments: str) -> None:
        program = _program(name)
        assert program is not None
        quiet = dict.fromkeys(("stdout", "stderr", "stdin"), subprocess.DEVNULL)
        self._popen(host, program, *arguments, **quiet)

    def _popen(self, host: Machine, *command: str | Path, **options: Any) -> subprocess.Popen[Any]:
        return host.popen(*command, cwd=self.shared, env=self._environ, **options)

    def _await(self, is_so: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not is_so():
            assert time.monotonic() < deadline, self._logs()
            time.sleep(0.2)

    def _logs(self) -> str:
        found = [path for host in self.hosts for path in host.inside(self._disk).glob("*.log")]
        return "\n".join(f"{path}:\n{path.read_text()[-2000:]}" for path in found)


_MUNGE_FILES: Mapping[str, str] = {
    "socket": "munge.socket",
    "key-file": "key",
    "log-file": "munged.log",
    "pid-file": "munged.pid",
    "seed-file": "munged.seed",
}


def _environment(disk: Path, *, conf: Path) -> dict[str, str]:
    """Returns the environment of the daemons, and of `sbatch`, which gives it to the job."""
    return {
        **inherited(),
        "SLURM_CONF": str(conf),
        "HOME": str(disk),
        "TMPDIR": str(disk / "tmp"),
        "RAY_TMPDIR": str(disk),
        "RAYDIST_VENV": sys.prefix,
    }
