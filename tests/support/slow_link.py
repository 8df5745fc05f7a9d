"""A slow link between two network interfaces, as a program: what sch_netem does, where the kernel lacks it.

`relay PORT TAP DELAY_S LOSS` passes frames between the interface PORT and a new one, TAP, until its standard
input ends. `no-offload INTERFACE` makes the kernel itself do for an interface what its driver promised to.
"""

from __future__ import annotations

import array
import fcntl
import os
import random
import select
import socket
import struct
import sys
import time
from collections import deque

_MAX_FRAME_BYTES = 65_536
_ALL_PROTOCOLS = 0x0003
# linux/if_tun.h, linux/sockios.h, linux/ethtool.h
_TUNSETIFF, _IFF_TAP, _IFF_NO_PI = 0x400454CA, 0x0002, 0x1000
_SIOCETHTOOL = 0x8946
_SET_CHECKSUM, _SET_TSO, _SET_GSO = 0x17, 0x1F, 0x24


class Direction:
    """Frames on their way, the oldest first: all take equally long."""

    def __init__(self, *, delay_s: float, loss: float, seed: int) -> None:
        self._delay_s = delay_s
        self._loss = loss
        self._random = random.Random(seed)
        self._frames: deque[tuple[float, bytes]] = deque()

    def put(self, frame: bytes, *, now_s: float) -> None:
        if self._random.random() >= self._loss:
            self._frames.append((now_s + self._delay_s, frame))

    def take_due(self, *, now_s: float) -> list[bytes]:
        due = []
        while self._frames and self._frames[0][0] <= now_s:
            due.append(self._frames.popleft()[1])
        return due

    @property
    def next_due_s(self) -> float:
        return self._frames[0][0] if self._frames else float("inf")


def relay(port: str, tap: str, *, delay_s: float, loss: float) -> None:
    wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ALL_PROTOCOLS))
    wire.bind((port, 0))
    tap_fd = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(tap_fd, _TUNSETIFF, struct.pack("16sH22x", tap.encode(), _IFF_TAP | _IFF_NO_PI))
    print("ready", flush=True)
    inwards = Direction(delay_s=delay_s, loss=loss, seed=1)
    outwards = Direction(delay_s=delay_s, loss=loss, seed=2)
    while True:
        now_s = time.monotonic()
        wait_s = max(0.0, min(1.0, inwards.next_due_s - now_s, outwards.next_due_s - now_s))
        ready, _, _ = select.select([0, wire, tap_fd], [], [], wait_s)
        now_s = time.monotonic()
        if 0 in ready:
            return
        if wire in ready:
            frame, sender = wire.recvfrom(_MAX_FRAME_BYTES)
            if sender[2] != socket.PACKET_OUTGOING:  # what we sent ourselves is shown to us too
                outwards.put(frame, now_s=now_s)
        if tap_fd in ready:
            inwards.put(os.read(tap_fd, _MAX_FRAME_BYTES), now_s=now_s)
        _deliver(inwards, outwards, wire=wire, tap_fd=tap_fd, now_s=now_s)


def _deliver(
    inwards: Direction, outwards: Direction, *, wire: socket.socket, tap_fd: int, now_s: float
) -> None:
    for frame in outwards.take_due(now_s=now_s):
        try:
            os.write(tap_fd, frame)
        except OSError:
            continue  # the interface is not up yet
    for frame in inwards.take_due(now_s=now_s):
        try:
            wire.send(frame)
        except OSError:
            continue  # the link is down, or its queue is full


def turn_offload_off(interface: str) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for feature in (_SET_TSO, _SET_GSO, _SET_CHECKSUM):
            value = array.array("I", [feature, 0])
            request = struct.pack("16sP", interface.encode(), value.buffer_info()[0])
            fcntl.ioctl(any_socket, _SIOCETHTOOL, request)


def main(arguments: list[str]) -> None:
    match arguments:
        case ["relay", port, tap, delay_s, loss]:
            relay(port, tap, delay_s=float(delay_s), loss=float(loss))
        case ["no-offload", interface]:
            turn_offload_off(interface)
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
