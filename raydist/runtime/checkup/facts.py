"""What one host reports about itself, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


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


@dataclass(frozen=True, kw_only=True)
class Link:
    """The bandwidth from one host to another, in bytes per second, or why it is unknown."""

    source: str
    target: str
    rate: float | None
    error: str | None = None
