"""What hosts report about themselves, and what it means: each finding is fine, or says what to do. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from raydist.known_versions import KNOWN, version_of
from raydist.runtime.host.address import describe_proxies
from raydist.runtime.host.software import describe_difference


@dataclass(frozen=True, kw_only=True)
class Disk:
    """A file system, what is free on it, and why nothing can be written there."""

    path: str
    free_bytes: int
    total_bytes: int
    error: str | None = None


@dataclass(frozen=True, kw_only=True)
class Device:
    """A device of TensorFlow.

    Attributes:
      kind: `CPU`, `GPU` or `TPU`.
      gflops: Rate of a matrix product in 10^9 operations a second; None where its result was wrong.
    """

    kind: str
    name: str
    gflops: float | None


@dataclass(frozen=True, kw_only=True)
class StorageSpeed:
    """The rates at which one file was written and read back, in bytes per second."""

    write: float
    read: float


@dataclass(frozen=True, kw_only=True)
class QuickFacts:
    """What a host can report at once.

    Attributes:
      versions: Of raydist, TensorFlow, Keras, Ray and Python; `none` where one is not installed.
      disks: Those that a task needs.
      storage_error: Why the storage could not be used, if so.
    """

    versions: Mapping[str, str]
    disks: tuple[Disk, ...] = ()
    storage_error: str | None = None


@dataclass(frozen=True, kw_only=True)
class HostFacts(QuickFacts):
    """One host.

    Attributes:
      hostname: Its own name.
      lost: What raydist cannot do with these versions, a sentence each.
      gpus: Each GPU and its driver, as `nvidia-smi` reports.
      devices: What TensorFlow has; empty where it could not be asked, with the reason as `device_error`.
      proxies: Names of the variables that are set.
      public_addresses: Those of its addresses that the internet could reach.
      task_ports: On which the tasks of runs listen, on all addresses.
      storage: None where it could not be used, with the reason as `storage_error`.
    """

    hostname: str
    lost: tuple[str, ...] = ()
    gpus: tuple[str, ...] = ()
    devices: tuple[Device, ...] = ()
    device_error: str | None = None
    proxies: tuple[str, ...] = ()
    public_addresses: tuple[str, ...] = ()
    task_ports: tuple[int, ...] = ()
    storage: StorageSpeed | None = None


@dataclass(frozen=True, kw_only=True)
class Clock:
    """How far a host's clock is ahead of the driver's, with the error of that measurement."""

    offset_s: float
    error_s: float


_GIB = 2**30
_MB = 1e6
# Unpacked code, the spool of logs, and what Ray itself keeps for a run of some hours.
_MIN_FREE_BYTES = 5 * _GIB
_REMEDY = "make room, or set TMPDIR to a larger disk before `ray start`"
_FIRST_WITH_TOKENS = (2, 52)
# Claims and logs need clocks that agree to a few seconds.
_MAX_OFFSET_S = 2.0
# 100 Mbit/s: less than any network that hosts are joined by, so something is in the way.
_MIN_LINK_RATE = 12.5e6


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One line.

    Attributes:
      host: The host's address; None for what concerns all, and for the host that looks at itself alone.
      what: What was looked at, in a word.
      text: What was found; where it is not fine, with the remedy.
      exit_code: What the command line ends with if it is not fine.
    """

    host: str | None
    what: str
    text: str
    is_ok: bool = True
    exit_code: int = 0


def bad(host: str | None, what: str, text: str, *, exit_code: int = 3) -> Finding:
    return Finding(host=host, what=what, text=text, is_ok=False, exit_code=exit_code)


def findings_of(
    host: str,
    facts: HostFacts,
    *,
    references: Mapping[str, Mapping[str, str]],
    resources: Mapping[str, float],
    clock: Clock,
) -> list[Finding]:
    """Returns the findings about one host.

    Args:
      references: As `describe_difference` takes them.
      resources: What Ray counts on there.
    """
    return [
        *_versions(host, facts, references),
        *_gpus(host, facts, round(resources.get("GPU", 0))),
        Finding(host=host, what="TPUs", text=_count(resources.get("TPU", 0))),
        *findings_of_disks(host, facts.disks),
        _clock(host, clock),
        _storage(host, facts),
        _ports(host, facts),
        Finding(host=host, what="proxies", text=describe_proxies(facts.proxies)),
    ]


def quick_findings_of(
    host: str, facts: QuickFacts, *, references: Mapping[str, Mapping[str, str]]
) -> Iterator[Finding]:
    """Yields what is not fine of what a host reports at once; takes what `findings_of` does."""
    wrong = _wrong_versions(host, facts, references)
    if wrong is not None:
        yield wrong
    yield from (one for one in findings_of_disks(host, facts.disks) if not one.is_ok)
    if facts.storage_error is not None:
        yield _storage_problem(host, facts)


def finding_of_link(source: str, target: str, rate: float | str) -> Finding:
    """Returns the finding about the way from one host to another.

    Args:
      rate: The bandwidth in bytes per second, or why it is unknown.
    """
    what = "network"
    if isinstance(rate, str):
        remedy = "open the ports between the hosts, all of them or a range that you give with --ports"
        return bad(source, what, f"cannot send to {target}: {rate}; {remedy}")
    text = f"{rate / _MB:.0f} MB/s to {target}"
    if rate < _MIN_LINK_RATE:
        remedy = "join the hosts by a faster network, or reduce what is sent: --compress-gradients"
        return bad(source, what, f"{text}, which is slow for gradients; {remedy}")
    return Finding(host=source, what=what, text=text)


def _versions(host: str, facts: HostFacts, references: Mapping[str, Mapping[str, str]]) -> Iterator[Finding]:
    wrong = _wrong_versions(host, facts, references)
    if wrong is not None:
        yield wrong
        return
    newer = [
        f"{name} {version} is newer than {known.newest}, which is not tested"
        for name, known in KNOWN.items()
        if (version := facts.versions.get(name, "none")) != "none" and known.is_newer(version)
    ]
    shown = ", ".join(f"{name} {version}" for name, version in facts.versions.items())
    exposed = filter(None, [without_tokens(facts.versions.get("ray", "none"))])
    yield Finding(host=host, what="versions", text="; ".join([shown, *newer, *exposed, *facts.lost]))


def _wrong_versions(
    host: str, facts: QuickFacts, references: Mapping[str, Mapping[str, str]]
) -> Finding | None:
    difference = describe_difference(host, facts.versions, references=references)
    if difference is not None:
        return bad(host, "versions", difference)
    problems = (too_old(name, facts.versions.get(name, "none")) for name in KNOWN)
    problem = next((one for one in problems if one is not None), None)
    return None if problem is None else bad(host, "versions", problem)


def too_old(name: str, version: str) -> str | None:
    """Returns what is wrong with an old version of a library, and the remedy; None for any other."""
    known = KNOWN.get(name)
    if known is None or version == "none" or not known.is_older(version):
        return None
    return f'{name} {version} is too old; install "{name}{known.requirement}"'


def without_tokens(version: str) -> str | None:
    """Returns what a version of Ray without token authentication means; None for any other."""
    if version == "none" or version_of(version) >= _FIRST_WITH_TOKENS:
        return None
    first = ".".join(map(str, _FIRST_WITH_TOKENS))
    return (
        f"Ray {version} has no token authentication, so whoever reaches its ports can run code as you; "
        f'install "ray>={first}", or close its ports to others'
    )


def _gpus(host: str, facts: HostFacts, num_of_ray: int) -> Iterator[Finding]:
    if facts.device_error is not None:
        yield bad(host, "devices", f"TensorFlow cannot be used: {facts.device_error}")
        return
    seen = [device for device in facts.devices if device.kind == "GPU"]
    wrong = [device.name for device in facts.devices if device.gflops is None]
    rates = ", ".join(
        f"{device.name} {device.gflops:.0f} GFLOP/s" for device in facts.devices if device.gflops is not None
    )
    if wrong:
        yield bad(
            host, "devices", f"a matrix product is wrong on {', '.join(wrong)}; do not use that hardware"
        )
    else:
        yield Finding(host=host, what="devices", text=f"matrix product: {rates}")
    if len(seen) < max(num_of_ray, len(facts.gpus)):
        there = f"{num_of_ray} in Ray, {len(facts.gpus)} of the driver ({'; '.join(facts.gpus) or 'none'})"
        remedy = 'install "tensorflow[and-cuda]" there, and a driver that supports its CUDA version'
        yield bad(host, "GPUs", f"TensorFlow sees {len(seen)} of {there}; {remedy}")
    elif len(seen) > num_of_ray:
        remedy = f"start Ray there with --num-gpus={len(seen)}"
        yield bad(host, "GPUs", f"Ray counts {num_of_ray} of {len(seen)}; {remedy}")
    else:
        yield Finding(host=host, what="GPUs", text="; ".join(facts.gpus) or _count(len(seen)))


def findings_of_disks(host: str | None, disks: Iterable[Disk]) -> Iterator[Finding]:
    """Yields a finding for each disk."""
    for disk in disks:
        text = f"{disk.free_bytes / _GIB:.1f} of {disk.total_bytes / _GIB:.1f} GiB free in {disk.path}"
        if disk.error is not None:
            yield bad(host, "disk", f"nothing can be written in {disk.path}: {disk.error}; {text}; {_REMEDY}")
        elif disk.free_bytes < _MIN_FREE_BYTES:
            yield bad(host, "disk", f"{text}; {_REMEDY}")
        else:
            yield Finding(host=host, what="disk", text=text)


def _clock(host: str, clock: Clock) -> Finding:
    text = f"{clock.offset_s:+.3f} s against this host, to {clock.error_s:.3f} s"
    if abs(clock.offset_s) - clock.error_s > _MAX_OFFSET_S:
        return bad(host, "clock", f"{text}; set it by NTP, such as with chrony")
    return Finding(host=host, what="clock", text=text)


def _storage(host: str, facts: HostFacts) -> Finding:
    if facts.storage is None:
        return _storage_problem(host, facts)
    speed = facts.storage
    return Finding(
        host=host,
        what="storage",
        text=f"seen; writes {speed.write / _MB:.0f} MB/s, reads {speed.read / _MB:.0f} MB/s",
    )


def _storage_problem(host: str, facts: QuickFacts) -> Finding:
    return bad(host, "storage", facts.storage_error or "was not looked at", exit_code=4)


def _ports(host: str, facts: HostFacts) -> Finding:
    if not facts.public_addresses:
        return Finding(host=host, what="exposure", text="no public address of its own")
    addresses = ", ".join(facts.public_addresses)
    remedy = "close them to others by a firewall, `raydist guide security` explains why"
    if facts.task_ports:
        ports = ", ".join(map(str, facts.task_ports))
        return bad(
            host, "exposure", f"tasks listen on {addresses}, port {ports}, without authentication; {remedy}"
        )
    return bad(
        host,
        "exposure",
        f"tasks would listen on {addresses} without authentication; give --ports, and {remedy}",
    )


def _count(number: float) -> str:
    return f"{number:g}" if number else "none"
