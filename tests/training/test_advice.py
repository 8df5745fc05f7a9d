"""Programs that several replicas cannot run: TensorFlow's own message, and what to do."""

from __future__ import annotations

import importlib
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest

import raydist
from raydist.spec.params import RunParams
from raydist.spec.tasks import TaskId
from raydist.task import failure_of
from raydist.training.reporting.tf_messages import with_advice
from tests.support.processes import Cluster, run_function

MESSAGES = "tests.support.mistake_functions:messages"
TENSORFLOWS = {
    "loss_with_the_default_reduction": "Please use `tf.keras.losses.Reduction.SUM`",
    "summary_without_tensorboard": "TensorBoard is not installed",
    "loop_over_other_sizes": "Shape mismatch in the collective instance",
}
OURS = {
    "loss_with_the_default_reduction": "Make the loss with reduction='none' and divide the sum by the global",
    "summary_without_tensorboard": "`pip install 'raydist[tensorboard]'`",
    "loop_over_other_sizes": "reduce them to scalars first, or give every worker batches of one size",
}


@pytest.mark.slow
def test_programs_that_are_wrong_for_several_replicas_say_what_to_do() -> None:
    cluster = Cluster(strategy="multi_worker_mirrored", workers=2, keras="legacy")
    tasks = run_function(MESSAGES, cluster, mistakes=list(OURS))
    for name, advice in OURS.items():
        told = [task.values["told"][name] for task in tasks]
        # Of different shapes only one worker may learn; the other one is told that its peer has failed.
        named = [one for one in told if TENSORFLOWS[name] in one[1]]
        assert len(named) >= (1 if name == "loop_over_other_sizes" else 2)
        for kind, message, traceback in named:
            assert kind == "USER"
            assert advice in message.splitlines()[-1]
            assert "mistake_functions.py" in traceback


@pytest.mark.slow
def test_error_of_a_node_is_a_sentence_with_the_frames_of_the_users_code_alone(keras: str) -> None:
    names = ["label_out_of_range", "assertion_in_a_step"]
    [task] = run_function(MESSAGES, Cluster(keras=keras), mistakes=names)
    label, assertion = (task.values["told"][name] for name in names)
    assert label[:2] == [
        "USER",
        "a label is 7, but the model's output has 3 classes, 0 to 2; give the last layer a unit for each "
        "class, or number the labels from 0",
    ]
    assert assertion[1].startswith("assertion failed: [inputs are small]")
    of_graph = assertion[2].partition("in the graph that was made at\n")[2]
    assert "in train_step" in of_graph
    assert "site-packages" not in of_graph
    assert f"{Path(raydist.__file__).parent}/" not in of_graph


def test_functions_of_steps_that_do_not_call_kerass_are_refused_by_name(keras: str) -> None:
    function = "tests.support.mistake_functions:functions_of_own_steps"
    [task] = run_function(function, Cluster(strategy="mirrored", devices=2, keras=keras))
    for name, method, step in (
        ("Predicting", "make_predict_function", "predict_step"),
        ("Training", "make_train_function", "train_step"),
    ):
        said = task.values[name]
        assert f"{name}.{method} in " in said
        assert "mistake_functions.py:" in said
        assert f"Override {step}, or call super().{method}" in said
    assert task.values["Counting"] >= 1


def test_saved_model_that_parameter_servers_write_elsewhere_says_where_to_save() -> None:
    message = "saved/exported/variables/variables_temp; No such file or directory\n\t [[{{node SaveV2}}]]"
    assert with_advice(message).endswith("on storage that all hosts share, or save a .keras file.")


@pytest.mark.parametrize("message", ["", "loss is not a number"])
def test_other_messages_stay_as_they_are(message: str) -> None:
    assert with_advice(message) == message


class BadLabels(raydist.FinalError, ValueError):
    pass


class NotReady(raydist.RetryableError):
    pass


@pytest.mark.parametrize(
    ("error", "wants_retry"),
    [
        (raydist.FinalError("x"), False),
        (BadLabels("x"), False),
        (raydist.RetryableError("x"), True),
        (NotReady("x"), True),
        (SystemExit(75), True),
        (SystemExit(1), None),
        (ValueError("x"), None),
    ],
)
def test_exception_says_by_its_class_whether_another_attempt_may_follow(
    error: BaseException, wants_retry: bool | None
) -> None:
    failure = failure_of(TaskId.parse("worker/0"), error)
    assert (failure.kind.name, failure.wants_retry) == ("USER", wants_retry)
    assert failure.error_type == type(error).__name__
    assert failure.traceback is not None


def test_code_and_files_that_are_elsewhere_say_where_they_were_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    def told(attempt: Callable[[], object]) -> str:
        with pytest.raises(Exception) as caught:  # noqa: PT011
            attempt()
        return failure_of(TaskId.parse("worker/0"), caught.value).message

    message = told(lambda: importlib.import_module("no_such_package.part"))
    assert (
        "no_such_package is not installed where the task runs, and is not in the folder that travels"
        in message
    )
    assert "--runtime-env" in message
    message = told(lambda: Path("data/table.csv").read_text())
    assert (
        f"data/table.csv was looked for in {tmp_path}, where the task runs with a copy of the job's"
        in message
    )
    assert "looked for" not in told(lambda: Path("/no/such/file").read_text())


def test_param_that_the_run_has_not_names_those_it_has() -> None:
    params = RunParams(rate=0.1, epochs=3)
    assert params["rate"] == 0.1
    assert params.get("size") is None
    with pytest.raises(KeyError) as caught:
        params["size"]
    assert failure_of(TaskId.parse("worker/0"), pickle.loads(pickle.dumps(caught.value))).message == (
        "ctx.params has no 'size': the run has rate, epochs. Give it with -p size=VALUE, or a default in "
        "@raydist.job(params={...})"
    )


@pytest.mark.parametrize(("raised", "wants_retry"), [(BadLabels, False), (KeyError, None)])
def test_the_exception_that_was_raised_counts_and_not_its_cause(
    raised: type[Exception], wants_retry: bool | None
) -> None:
    with pytest.raises(raised) as caught:
        raise raised("x") from NotReady("y")
    assert failure_of(TaskId.parse("worker/0"), caught.value).wants_retry is wants_retry


def test_what_was_raised_in_a_function_that_autograph_converted_counts() -> None:
    raised, staging_error = NotReady("y"), RuntimeError("in user code: y")
    raised.ag_error_metadata = object()  # type: ignore[attr-defined]
    staging_error.__context__ = raised
    assert failure_of(TaskId.parse("worker/0"), staging_error).wants_retry is True


def test_colours_of_a_library_are_no_part_of_a_failure() -> None:
    try:
        raise ValueError("calling \x1b[1mDense.call()\x1b[0m failed")
    except ValueError as error:
        failure = failure_of(TaskId.parse("worker/0"), error)
    assert failure.message == "calling Dense.call() failed"
    assert failure.traceback.endswith("ValueError: calling Dense.call() failed\n")
