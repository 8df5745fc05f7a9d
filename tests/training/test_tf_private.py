"""What raydist touches of TensorFlow's private parts is there, and still needed."""

from __future__ import annotations

from tests.support.processes import Cluster, run_function


def test_private_parts_are_what_they_were() -> None:
    [task] = run_function("tests.support.train_functions:internals", Cluster())
    assert task.values["has"] == [True, True, True]
    assert task.values["needs_field"]
    wanted = {"service_type", "service_leader", "coordinated_jobs", "cluster_register_timeout_in_ms"}
    assert wanted | {"heartbeat_timeout_in_ms"} <= set(task.values["arguments"])
    # Fails when TensorFlow takes the barrier as an argument: then the private field can go.
    assert not task.values["has_argument"]
