"""What raydist touches of TensorFlow's private parts is there, and still needed."""

from __future__ import annotations

from tests.support.processes import Cluster, run_function


def test_private_parts_are_what_they_were() -> None:
    [task] = run_function("tests.support.train_functions:internals", Cluster())
    assert task.values["has"] == [True, True, True]
    # TensorFlow 2.18 has no such field.
    assert task.values["needs_field"] or task.values["version"].startswith("2.18.")
    wanted = {"service_type", "service_leader", "coordinated_jobs", "cluster_register_timeout_in_ms"}
    assert wanted | {"heartbeat_timeout_in_ms"} <= set(task.values["arguments"])
    # Fails when TensorFlow takes the barrier as an argument: then the private field can go.
    assert not task.values["has_argument"]
    # A PreemptionCheckpointHandler asks raydist; TensorFlow alone gives it nobody to ask.
    assert task.values["has_watcher"] == [True, False]
    assert task.values["grace_periods"] == [0, 60]


def test_servers_that_are_about_to_start_are_waited_for() -> None:
    """TensorFlow, once refused, tries again only after a second."""
    [task] = run_function("tests.support.train_functions:late_server", Cluster())
    assert task.values["has_waited"]


def test_each_name_of_an_operation_is_in_tensorflows_registry() -> None:
    [task] = run_function("tests.support.train_functions:unknown_op_types", Cluster())
    assert task.values["unknown"] == []
    assert task.values["count"] > 20


def test_data_sets_of_tf_data_are_recognized() -> None:
    [task] = run_function("tests.support.plain_pipelines:recognized", Cluster())
    own = (
        "batch",
        "padded_batch",
        "repeat",
        "take",
        "skip",
        "prefetch",
        "with_options",
        "assert_cardinality",
    )
    others = ("cache", "shuffle", "interleave", "flat_map")
    kinds = {"map": "map", "parallel map": "map", "parallel batch": "batch", **{name: name for name in own}}
    assert task.values["kinds"] == kinds | dict.fromkeys(others)
    assert {name: task.values["names"][name] for name in others} == {name: name for name in others}
    assert task.values["values"] == {
        "batch": [3, False],
        "padded_batch": True,
        "prefetch": 3,
        "parallel map": 2,
        "map": None,
    }
    assert task.values["again"] == {
        "repeat": [*range(8), *range(8)],
        "take": [0, 1, 2, 3, 4],
        "skip": [5, 6, 7],
    }
    assert task.values["with a state"] == ["RandomUniform", "PyFunc", "EagerPyFunc", "AssignAddVariableOp"]


def test_variables_that_a_function_changes_are_told_from_those_that_it_reads() -> None:
    [task] = run_function("tests.support.train_functions:changed_and_read", Cluster())
    assert task.values["changed"] == ["called:0", "condition:0", "itself:0", "loop:0"]


def test_a_function_that_is_inlined_keeps_no_trace() -> None:
    [task] = run_function("tests.support.decorator_functions:traces_that_are_kept", Cluster())
    assert task.values["traces"] == [0, 1]
    assert task.values["values"] == [2.0, 3.0]
    assert (task.values["two"], task.values["is_none"]) == (2.0, True)
    assert task.values["seen"] == [[[2], "int64"], [[None], "int64"]]


def test_what_has_effects_is_left_out_of_a_trace_or_named() -> None:
    [task] = run_function("tests.support.loop_functions:parts_without_effects", Cluster())
    assert task.values["effects"] == {
        "reads": [],
        "assigns beside": [],
        "assigns in a condition": ["AssignAddVariableOp"],
        "aligns texts": [],
        "calls Python": ["PyFuncStateless"],
    }
    assert (task.values["drawing"], task.values["is_moved"]) == ([], False)
    assert (task.values["sum"], task.values["value"]) == (3.0, 1.0)


def test_iterators_are_freed_by_other_threads_and_all_of_them() -> None:
    """Freed in the thread that drops them, some wait for up to 60 s (docs/tensorflow-notes.md)."""
    [task] = run_function("tests.support.train_functions:iterators_that_are_freed", Cluster(devices=2))
    assert task.values["is_freed_here"] == {"plain": False, "distributed": False}
    assert task.values["num_pending"] == 0
    assert task.values["sum"] == 6


def test_grappler_drops_a_reshape_to_a_constant_shape() -> None:
    """Fails when it does not any more: then `check_constant_rows` can let reshapes be."""
    [task] = run_function("tests.support.mistake_functions:reshape_of_a_part", Cluster())
    assert task.values["mean"] == 6.0


def test_slots_outlast_a_lost_packet_odd_errors_and_a_time_without_workers() -> None:
    [task] = run_function("tests.support.parameter_server_functions:worker_slots", Cluster())
    found = task.values
    assert found["after a lost SYN"] == [[0, 1]]
    assert found["after errors"] == [[0, 1]] * 5
    of_update, of_message = found["notes"]
    assert of_message.startswith("Some workers may not join: AttributeError: ")
    assert of_update.startswith(
        "TensorFlow could not add workers to its cluster 3 times in a row (InternalError: odd)"
    )
    assert not found["outdated without workers"]
    assert found["made"] == [[0, 1], [1]]
    assert not found["outdated"]
