"""Fence: firewall rules on this host for the port of one task, removed when the task ends.

Their names are written to the task's scratch folder before they are set. The process that deletes that folder
removes them first: the task itself, or the one that cleans up after a killed task.
"""

from __future__ import annotations

import ipaddress
import json
import logging
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from raydist.runtime.host.firewall import rules
from raydist.runtime.host.firewall.rules import Fence, Tool

logger = logging.getLogger(__name__)

_NAME = "fence.json"
_TIMEOUT_S = 10.0
# Of old iptables only one may run at a time, and another task may be setting its rules: wait for 5 s.
_WAIT = ("-w", "5")
# Where a service's PATH may not lead.
_FOLDERS = ("/usr/sbin", "/sbin", "/usr/local/sbin")


def set_fence(scratch_path: Path, port: int, *, hosts: Sequence[str]) -> bool:
    """Lets only `hosts` and this one connect to a port; returns False where this process may not do that.

    Args:
      hosts: IP addresses.
    """
    if not all(map(_is_address, hosts)):
        return False
    for tool in Tool:
        if _find(tool.value) is None:
            continue
        fence = Fence.new(tool, port)
        _write_down(scratch_path, fence)
        if _set(fence, hosts):
            return True
        _lift(fence)
    return False


def lift_fences(scratch_path: Path) -> None:
    """Removes the rules of the task that had the folder. Idempotent; rules that cannot be removed stay."""
    try:
        for fence in _read(scratch_path):
            _lift(fence)
    except (OSError, ValueError, TypeError) as error:
        logger.warning("the firewall rules of %s stay: %s", scratch_path.name, error)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _write_down(scratch_path: Path, fence: Fence) -> None:
    known = [[one.tool.value, one.port, one.name] for one in (*_read(scratch_path), fence)]
    aside = scratch_path / f".{_NAME}-{os.getpid()}"
    aside.write_text(json.dumps(known))
    aside.replace(scratch_path / _NAME)


def _read(scratch_path: Path) -> list[Fence]:
    path = scratch_path / _NAME
    if not path.exists():
        return []
    return [Fence(Tool(tool), int(port), str(name)) for tool, port, name in json.loads(path.read_text())]


def _set(fence: Fence, hosts: Sequence[str]) -> bool:
    if fence.tool is Tool.NFT:
        return _succeeds(
            ["nft", "-f", "-"], rules.nft_table(fence.name, ports=[fence.port], hosts=hosts) + "\n"
        )
    script = rules.iptables_script(fence, hosts=hosts, version=4)
    if not _succeeds(["iptables-restore", *_WAIT, "--noflush"], script):
        return False
    # TensorFlow's server listens for both, where the host has both.
    has_ipv6 = Path("/proc/net/if_inet6").exists()
    script = rules.iptables_script(fence, hosts=hosts, version=6)
    return not has_ipv6 or _succeeds(["ip6tables-restore", *_WAIT, "--noflush"], script)


def _lift(fence: Fence) -> None:
    if fence.tool is Tool.NFT:
        _succeeds(["nft", "delete", "table", "inet", fence.name])
        return
    for command in ("iptables", "ip6tables"):
        for arguments in rules.iptables_removal(fence):
            _succeeds([command, *_WAIT, *arguments])


def _succeeds(command: Sequence[str], script: str = "") -> bool:
    program = _find(command[0])
    if program is None:
        return False
    try:
        ended = subprocess.run(
            [program, *command[1:]], input=script, capture_output=True, text=True, timeout=_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        logger.info("%s: %s", command[0], error)
        return False
    if ended.returncode != 0:
        logger.info("%s: %s", command[0], ended.stderr.strip())
    return ended.returncode == 0


def _find(program: str) -> str | None:
    return shutil.which(program) or shutil.which(program, path=os.pathsep.join(_FOLDERS))
