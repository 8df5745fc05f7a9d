"""Which addresses TensorFlow's servers are not started at."""

from __future__ import annotations

import pytest

from raydist.errors import ClusterError
from raydist.runtime.host.firewall import check_not_public, is_public
from raydist.spec.tasks import TaskId


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        *(("8.8.4.4", True), ("2600:1f18::1", True), ("::ffff:8.8.4.4", True)),
        *(("10.0.0.1", False), ("172.16.0.1", False), ("192.168.1.1", False), ("127.0.0.1", False)),
        *(("169.254.1.1", False), ("100.64.0.1", False), ("::1", False), ("fe80::1%eth0", False)),
        *(("fd00::1", False), ("::ffff:10.0.0.1", False), ("worker-0.local", False)),
    ],
)
def test_address_is_public(address: str, expected: bool) -> None:
    assert is_public(address) is expected


def test_public_address_is_refused_with_its_remedies() -> None:
    listening = {TaskId.parse("worker/0"): "10.0.0.1:1", TaskId.parse("worker/1"): "[2600:1f18::1]:20000"}
    with pytest.raises(ClusterError) as raised:
        check_not_public(listening)
    message = str(raised.value)
    assert raised.value.task == "worker/1"
    assert message.startswith("worker/1 would listen at [2600:1f18::1]:20000, and 2600:1f18::1 is a public ")
    for remedy in ("--node-ip-address", "--allow-public-ports"):
        assert remedy in message
    check_not_public({TaskId.parse("worker/0"): "10.0.0.1:1"})
