"""Who can reach the ports of TensorFlow's servers: public addresses, and a fence of firewall rules.

A fence lets only a run's hosts reach the port of one task, by nft or iptables. It is removed when the task
ends.
"""

from __future__ import annotations

import enum
import ipaddress
import json
import logging
import os
import secrets
import shutil
import subprocess
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from raydist.errors import ClusterError
from raydist.runtime.host.address import split_address
from raydist.spec.tasks import TaskId

logger = logging.getLogger(__name__)

# Before other tables' usual 0. What is accepted here is still looked at there, so nothing is opened.
_PRIORITY = -10


class Tool(enum.Enum):
    """What sets the rules."""

    NFT = "nft"
    IPTABLES = "iptables"


@dataclass(frozen=True)
class Fence:
    """The rules of one process for one port. Each has its own, as a port may have another process by then.

    Attributes:
      name: Of the nft table, or of the iptables chain.
    """

    tool: Tool
    port: int
    name: str


def nft_table(name: str, *, ports: Collection[int], hosts: Sequence[str]) -> str:
    """Returns a table in which only `hosts` (IP addresses) and the host itself may connect to `ports`."""
    accepted = ['iifname "lo" accept;']
    for family, addresses in (("ip", _of_version(hosts, 4)), ("ip6", _of_version(hosts, 6))):
        if addresses:
            accepted.append(f"{family} saddr {{ {', '.join(addresses)} }} accept;")
    wanted = ", ".join(map(str, sorted(ports)))
    return (
        f"table inet {name} {{ chain input {{ type filter hook input priority {_PRIORITY}; "
        f"{' '.join(accepted)} tcp dport {{ {wanted} }} reject with tcp reset; }}; }}"
    )


def iptables_script(fence: Fence, *, hosts: Sequence[str], version: int) -> str:
    """Returns the rules for `iptables-restore --noflush`; with IP version 6 for `ip6tables-restore`."""
    name = fence.name
    accepted = [f"-A {name} -s {address} -j RETURN" for address in _of_version(hosts, version)]
    lines = [
        "*filter",
        f":{name} - [0:0]",
        f"-A {name} -i lo -j RETURN",
        *accepted,
        f"-A {name} -p tcp -j REJECT --reject-with tcp-reset",
        f"-I INPUT {_jump(fence)}",
        "COMMIT",
    ]
    return "\n".join(lines) + "\n"


def iptables_removal(fence: Fence) -> list[list[str]]:
    """Returns the arguments of the iptables calls that remove the rules."""
    return [["-D", "INPUT", *_jump(fence).split()], ["-F", fence.name], ["-X", fence.name]]


def advice(*, ports: Collection[int], hosts: Sequence[str]) -> str:
    """Returns the sentence with the rule for hosts on which raydist may not set it."""
    return (
        "--fence is not in place on each host, as it needs root, and nft or iptables; to close the ports of "
        f"TensorFlow's servers there, let root run: nft '{nft_table('raydist', ports=ports, hosts=hosts)}'"
    )


def _jump(fence: Fence) -> str:
    return f"-p tcp --dport {fence.port} -j {fence.name}"


def _of_version(hosts: Sequence[str], version: int) -> list[str]:
    return [host for host in hosts if ipaddress.ip_address(host).version == version]


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
    if None in map(_parsed, hosts):
        return False
    for tool in Tool:
        if _find(tool.value) is None:
            continue
        fence = Fence(tool, port, f"raydist-{port}-{secrets.token_hex(4)}")
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


def _parsed(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:  # a name
        return None


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
        return _succeeds(["nft", "-f", "-"], nft_table(fence.name, ports=[fence.port], hosts=hosts) + "\n")
    script = iptables_script(fence, hosts=hosts, version=4)
    if not _succeeds(["iptables-restore", *_WAIT, "--noflush"], script):
        return False
    # TensorFlow's server listens for both, where the host has both.
    has_ipv6 = Path("/proc/net/if_inet6").exists()
    script = iptables_script(fence, hosts=hosts, version=6)
    return not has_ipv6 or _succeeds(["ip6tables-restore", *_WAIT, "--noflush"], script)


def _lift(fence: Fence) -> None:
    if fence.tool is Tool.NFT:
        _succeeds(["nft", "delete", "table", "inet", fence.name])
        return
    for command in ("iptables", "ip6tables"):
        for arguments in iptables_removal(fence):
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


def is_public(host: str) -> bool:
    """Whether an IP address is routed on the internet; a host name is not looked up and counts as private."""
    address = _parsed(host.partition("%")[0])
    mapped = getattr(address, "ipv4_mapped", None) or address
    return mapped is not None and bool(mapped.is_global)


def check_not_public(listening: Mapping[TaskId, str]) -> None:
    """Raises ClusterError if a task would listen at a public address.

    Args:
      listening: Tasks with a server of TensorFlow's, each with its `host:port`.
    """
    for task, address in listening.items():
        host, _ = split_address(address)
        if is_public(host):
            raise ClusterError(
                f"{task} would listen at {address}, and {host} is a public address: whoever reaches "
                "TensorFlow's server there can run code on that host; start Ray with the host's private "
                "address (ray start --node-ip-address=…), or, if a firewall closes the port to others, give "
                "--allow-public-ports",
                task=str(task),
            )
