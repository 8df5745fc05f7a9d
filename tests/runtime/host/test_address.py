from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from raydist.errors import SpecError
from raydist.runtime.host.address import running_address, split_address


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("10.0.0.1:6379", ("10.0.0.1", 6379)),
        ("head.example.org:6379", ("head.example.org", 6379)),
        ("[fd00::2]:6379", ("fd00::2", 6379)),
        ("ray://head:10001", ("head", 10001)),
    ],
)
def test_address_is_split(address: str, expected: tuple[str, int]) -> None:
    assert split_address(address) == expected


@pytest.mark.parametrize(
    "address", ["head", "head:", "head:0", "head:99999", "http://head:1", ":6379", "locl"]
)
def test_other_addresses_are_refused_with_the_forms(address: str) -> None:
    with pytest.raises(SpecError, match="write local, auto, HOST:PORT or ray://HOST:PORT"):
        split_address(address)


def record(folder: Path, address: str) -> dict[str, str]:
    (folder / "ray").mkdir()
    (folder / "ray" / "ray_current_cluster").write_text(address)
    return {"RAY_TMPDIR": str(folder)}


def test_recorded_address_that_answers_is_found(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        assert running_address(record(tmp_path, address)) == address


def test_address_that_a_crashed_ray_left_is_passed_over(tmp_path: Path) -> None:
    assert running_address(record(tmp_path, "127.0.0.1:1")) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_address_that_another_user_wrote_is_passed_over(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        environ = record(tmp_path, f"127.0.0.1:{server.getsockname()[1]}")
        os.chown(tmp_path / "ray" / "ray_current_cluster", 65534, 65534)
        assert running_address(environ) is None


def test_address_behind_a_link_is_passed_over(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        environ = record(tmp_path, f"127.0.0.1:{server.getsockname()[1]}")
        path = tmp_path / "ray" / "ray_current_cluster"
        path.rename(tmp_path / "own")
        path.symlink_to(tmp_path / "own")
        assert running_address(environ) is None


def test_no_record_is_no_address(tmp_path: Path) -> None:
    assert running_address({"RAY_TMPDIR": str(tmp_path)}) is None


@pytest.mark.parametrize(
    ("given", "expected"), [("10.9.9.9:6379", "10.9.9.9:6379"), ("ray://h:1", "ray://h:1"), ("local", None)]
)
def test_ray_address_is_taken_at_its_word(tmp_path: Path, given: str, expected: str | None) -> None:
    assert running_address({"RAY_ADDRESS": given, "RAY_TMPDIR": str(tmp_path)}) == expected
