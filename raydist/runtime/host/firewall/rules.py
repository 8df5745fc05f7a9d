"""The rules that let only a run's hosts reach its ports, as nft and as iptables read them."""

from __future__ import annotations

import enum
import ipaddress
import secrets
from collections.abc import Collection, Sequence
from dataclasses import dataclass

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

    @classmethod
    def new(cls, tool: Tool, port: int) -> Fence:
        return cls(tool, port, f"raydist-{port}-{secrets.token_hex(4)}")


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
