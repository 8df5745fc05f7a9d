"""Scripts in a task: what raydist does for them, and what it says of those that do not fit their run."""

from __future__ import annotations

import json
import re
import shutil
import signal
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raydist.entry.definition import read_job
from tests.conftest import WaitUntil
from tests.support.processes import Cluster, run_function
from tests.support.scripts import FOLDER, results, run_bare, run_script, started_script, write_script
from tests.training.test_plain_fit import global_losses

pytestmark = pytest.mark.slow

TWO_WORKERS = Cluster(strategy="multi_worker_mirrored", workers=2)
NUM_STEPS = 30  # of preemption.py
MIRRORED = Cluster(strategy="mirrored", devices=2)
MODEL = """
import numpy as np
import tensorflow as tf
def fitted(**options):
    model = tf.keras.Sequential([tf.keras.layers.Input((2,)), tf.keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    x = np.arange(32.0).reshape(16, 2) / 32.0
    return model.fit(x, x.sum(axis=1), batch_size=4, epochs=2, verbose=0, **options)
"""


def ended(folder: Path, source: str, cluster: Cluster, *args: object, **options: Any) -> list[dict[str, Any]]:
    """Runs a script in every task; returns their last statuses."""
    return [task.values for task in run_script(write_script(folder, source), cluster, *args, **options)]


def test_guides_script_with_keras_3_on_two_workers_gives_the_losses_of_one_device(tmp_path: Path) -> None:
    storage, out = tmp_path / "storage", tmp_path / "out"
    out.mkdir()
    tasks = run_script(FOLDER / "multi_worker_keras.py", TWO_WORKERS, out, storage=storage)
    [alone] = run_function("tests.support.script_functions:keras_losses", Cluster())
    found = results(out)
    assert [task.values["state"] for task in tasks] == ["FINISHED"] * 2
    np.testing.assert_allclose(found["worker-0"]["loss"], found["worker-1"]["loss"], rtol=1e-5)
    np.testing.assert_allclose(found["worker-0"]["loss"], alone.arrays["losses"], atol=1e-5)
    # What a script gets without a line for raydist.
    assert [task.values["step"] for task in tasks] == [42, 42]
    np.testing.assert_allclose(global_losses(storage), found["worker-0"]["loss"], rtol=1e-6)
    assert not any("attempt" in note or "strategy" in note for note in tasks[0].values["notes"])


@dataclass(frozen=True, kw_only=True)
class Guide:
    """How a guide of TensorFlow is run.

    Attributes:
      keras: What `tf.keras` is, by what its source needs.
      batch_size: The variable that has the batch size of a replica; None for one whose losses are by chance:
        asynchronous training, and a model that is built by its first step, whose replicas all draw weights.
      accuracy: What its trainings reach at least.
    """

    cluster: Cluster
    keras: str
    accuracy: float
    batch_size: str | None = None


SERVERS = Cluster(strategy="parameter_server", workers=2, ps=2)
GUIDES = {
    "distributed_training": Guide(
        cluster=MIRRORED, keras="3", batch_size="BATCH_SIZE_PER_REPLICA", accuracy=0.4
    ),
    "custom_training": Guide(cluster=MIRRORED, keras="legacy", accuracy=0.7),
    "multi_worker_with_keras": Guide(
        cluster=TWO_WORKERS, keras="legacy", batch_size="per_worker_batch_size", accuracy=0.3
    ),
    "multi_worker_with_ctl": Guide(
        cluster=TWO_WORKERS, keras="legacy", batch_size="per_worker_batch_size", accuracy=0.3
    ),
    "parameter_server_training": Guide(cluster=SERVERS, keras="legacy", accuracy=0.8),
}


@pytest.mark.parametrize("name", GUIDES)
def test_guide_runs_unedited_to_its_end_with_the_losses_of_one_device(name: str, tmp_path: Path) -> None:
    guide, path = GUIDES[name], FOLDER / "guides" / f"{name}.py"
    chosen = "legacy" if read_job(path.name, cwd=path.parent).source.legacy_keras_reason else "3"
    assert chosen == guide.keras
    tasks = run_script(path, replace(guide.cluster, keras=chosen))
    for task in tasks:
        assert task.values["failure"] is None, task.values["traceback"]
        assert printed_ends(task.printed) == printed_ends(tasks[0].printed)
    losses, accuracies = printed_ends(tasks[0].printed)
    assert accuracies[-1] > guide.accuracy
    if guide.batch_size is None:
        return
    # On one device each replica has the global batch.
    source = path.read_text().replace(f"{guide.batch_size} = 64", f"{guide.batch_size} = 128")
    seeded = f"import tensorflow\ntensorflow.keras.utils.set_random_seed(0)\n{source}"  # as raydist does
    shutil.copy(path.with_name("mnist_setup.py"), tmp_path)
    plain = write_script(tmp_path, seeded)
    num_tasks = 0 if guide.cluster is MIRRORED else 1
    [printed] = run_bare(plain, workers=num_tasks, keras=chosen)
    np.testing.assert_allclose(losses, printed_ends(printed)[0], atol=1e-5)


def printed_ends(text: str) -> tuple[list[float], list[float]]:
    """Returns the losses and the accuracies that a guide has printed at the ends of its trainings."""
    found = re.findall(r"Final loss: ([\d.e-]+), Accuracy: ([\d.e-]+)", text)
    assert found, text[-3000:]
    return [float(loss) for loss, _ in found], [float(accuracy) for _, accuracy in found]


def test_script_on_one_worker_has_no_tf_config_and_its_fit_is_counted(tmp_path: Path) -> None:
    source = f"""{MODEL}
import os, sys, raydist
assert "TF_CONFIG" not in os.environ
assert sys.argv[1:] == ["--epochs", "2"], sys.argv
assert os.path.basename(sys.argv[0]) == "main.py" and __name__ == "__main__"
assert sys.path[0] == os.path.dirname(os.path.abspath(__file__))
import beside
history = fitted(callbacks=[tf.keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: None)])
ctx = raydist.context()
assert ctx.is_chief and ctx.num_workers == 1 and ctx.attempt == 0 and ctx.step == 8
ctx.report({{"mine": 1.5}}, step=9)
beside.train()
sys.exit(0)
"""
    (tmp_path / "beside.py").write_text(
        "import raydist\ndef train():\n    assert raydist.context() is not None\n"
    )
    [status] = ended(tmp_path, source, Cluster(), "--epochs", "2", storage=tmp_path / "storage")
    assert status["failure"] is None, status["traceback"]
    assert (status["state"], status["step"], status["metrics"]) == ("FINISHED", 9, {"mine": 1.5})
    assert len(global_losses(tmp_path / "storage")) == 2


def test_context_of_a_script_builds_the_runs_strategy_and_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    source = """
import json, sys
import raydist
ctx = raydist.context()
strategy = ctx.strategy
assert strategy.num_replicas_in_sync == 2 and ctx.strategy is strategy
import tensorflow as tf
with strategy.scope():
    weights = tf.Variable([1.0, 2.0])
first = ctx.restore(weights=weights) or 0
print("restored", first, weights.numpy())
assert weights.numpy().tolist() == [1.0 + first, 2.0]
for step in range(first, first + 2):
    weights.assign_add([1.0, 0.0])
    ctx.report({"value": float(weights[0])}, step=step + 1)
ctx.save(step=first + 2, weights=weights)
"""
    for attempt in (0, 1):
        [status] = ended(tmp_path, source, MIRRORED, storage=tmp_path / "storage", attempt=attempt)
        assert status["failure"] is None, status["traceback"]
        assert status["step"] == 2 + 2 * attempt
    assert "attempt 1 ran main.py from its beginning" in status["notes"][0]
    assert status["metrics"] == {"value": 5.0}


def test_scripts_end_and_exit_code(tmp_path: Path) -> None:
    [status] = ended(tmp_path, "import sys\nprint('early')\nsys.exit(75)\n", Cluster())
    failure = status["failure"]
    assert (failure["kind"], failure["message"]) == ("USER", "main.py ended with exit code 75")
    assert failure["wants_retry"]
    assert status["traceback"].splitlines()[1].endswith('main.py", line 3, in <module>')
    note = "import raydist, sys\nnote = raydist.context().note\n"
    closed = f"{note}with open(sys.argv[1], 'w') as sys.stdout:\n    note('n')\nnote('after')\n"
    [status] = ended(tmp_path, closed, Cluster(), tmp_path / "log.txt")
    assert (status["state"], status["notes"][:2]) == ("FINISHED", ["n", "after"])
    assert (tmp_path / "log.txt").read_text() == ""
    [status] = ended(tmp_path, "x = 1\n", Cluster())
    assert status["state"] == "FINISHED"
    assert status["notes"] == [
        "main.py ended without reporting a step, so the run has no steps and no metrics: model.fit, "
        "raydist.context().report({...}, step=n) and raydist.context().train_steps(...) show progress"
    ]


def test_handler_of_preemptions_asks_for_another_attempt(tmp_path: Path) -> None:
    source = f"""
import tensorflow as tf
resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
strategy = tf.distribute.MultiWorkerMirroredStrategy(cluster_resolver=resolver)
with strategy.scope():
    count = tf.Variable(0.0)
is_taken_away = tf.distribute.experimental.TerminationConfig(
    termination_watcher_fn=lambda: resolver.task_id == 0
)
handler = tf.distribute.experimental.PreemptionCheckpointHandler(
    resolver, tf.train.Checkpoint(count=count), {str(tmp_path / "saved")!r}, is_taken_away
)
step = tf.function(lambda: strategy.run(lambda: count.assign_add(1.0)))
while True:
    handler.run(step)
"""
    # The other worker may be in a step by then, in which it waits until the controller ends it.
    with started_script(write_script(tmp_path, source), TWO_WORKERS) as [taken_away, _]:
        assert taken_away.process.wait(timeout=120) == 0, taken_away.text()
        failure = json.loads((taken_away.folder / "values.json").read_text())["failure"]
    assert (failure["message"], failure["wants_retry"]) == ("main.py ended with exit code 42", True)


def test_handler_of_preemptions_saves_when_it_is_told_and_no_step_is_repeated(
    tmp_path: Path, wait_until: WaitUntil
) -> None:
    script, held_at = FOLDER / "preemption.py", 10
    moved, undisturbed = tmp_path / "moved", tmp_path / "undisturbed"
    for folder in (moved, undisturbed):
        folder.mkdir()

    def done(worker: int) -> list[int]:
        path = moved / f"steps-{worker}.txt"
        return [*map(int, path.read_text().split())] if path.exists() else []

    with started_script(script, TWO_WORKERS, moved, held_at) as tasks:
        wait_until(lambda: all(held_at in done(worker) for worker in (0, 1)), timeout_s=120)
        tasks[0].process.send_signal(signal.SIGHUP)  # the chief is told, see task_main
        (moved / "release").touch()
        assert [task.process.wait(timeout=120) for task in tasks] == [0, 0], tasks[0].text()
        ends = [json.loads((task.folder / "values.json").read_text()) for task in tasks]
    assert [(end["failure"]["kind"], end["failure"]["wants_retry"]) for end in ends] == [("SAVED", True)] * 2
    assert ends[0]["saves_by_itself"]
    assert done(0) == done(1) == [*range(1, max(done(0)) + 1)]  # no other worker is behind
    assert held_at <= max(done(0)) < NUM_STEPS
    run_script(script, TWO_WORKERS, moved, 0, attempt=1)
    run_script(script, TWO_WORKERS, undisturbed, 0)
    assert done(0) == done(1) == [*range(1, NUM_STEPS + 1)]
    weights = [np.load(folder / "weights-0.npy") for folder in (moved, undisturbed)]
    np.testing.assert_array_equal(*weights)


MISFITS = {
    "a mirrored one": (
        f"{MODEL}\nwith tf.distribute.MirroredStrategy().scope():\n    fitted()\n",
        TWO_WORKERS,
        "main.py built a MirroredStrategy, with replicas in its own process: each of the 2 workers",
    ),
    "no ps": (
        "import tensorflow as tf\n"
        "resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()\n"
        "tf.distribute.ParameterServerStrategy(resolver)\n",
        Cluster(),
        "main.py builds a ParameterServerStrategy, and the run has no parameter servers; add --ps 1",
    ),
    "another cluster": (
        "import os\nimport tensorflow as tf\nos.environ.pop('TF_CONFIG')\n"
        "tf.distribute.MultiWorkerMirroredStrategy()\n",
        TWO_WORKERS,
        "for another cluster than the 2 workers of the run; leave TF_CONFIG as it is",
    ),
    "too late": (
        "import tensorflow as tf\ntf.constant(1) + 1\ntf.distribute.MultiWorkerMirroredStrategy()\n",
        TWO_WORKERS,
        "Build MultiWorkerMirroredStrategy() before the first tensor",
    ),
}


@pytest.mark.parametrize("name", MISFITS)
def test_strategy_that_does_not_fit_the_run_is_told(name: str, tmp_path: Path) -> None:
    source, cluster, sentence = MISFITS[name]
    for status in ended(tmp_path, source, cluster):
        told = [*status["notes"], *([status["failure"]["message"]] if status["failure"] else [])]
        assert any(sentence in one for one in told), told
        if status["failure"] and name != "too late":
            assert status["failure"]["kind"] == "MISTAKE"


def test_options_of_raydists_own_strategies_are_told(tmp_path: Path) -> None:
    source = "import tensorflow as tf\ntf.distribute.MirroredStrategy()\n"
    [status] = ended(tmp_path, source, MIRRORED, job_options={"cross_device_ops": "one_device"})
    assert [note for note in status["notes"] if "cross_device_ops one_device has no effect" in note]


def test_strategy_without_the_runs_virtual_replicas_is_refused(tmp_path: Path) -> None:
    options = {"virtual_replicas": 2}
    source = "import tensorflow as tf\ntf.distribute.MirroredStrategy()\n"
    [status] = ended(tmp_path, source, Cluster(), job_options=options)
    assert status["failure"]["message"] == (
        "main.py builds a MirroredStrategy, which has no virtual replicas; take raydist.context().strategy "
        "in its place, or leave --virtual-replicas out"
    )
    alone = {**options, "default_strategy": False}
    [status] = ended(tmp_path, "x = 1\n", Cluster(), job_options=alone)
    assert "main.py never took raydist.context().strategy" in status["notes"][0]


def test_notebook_runs_cell_by_cell_and_absl_gets_the_arguments(tmp_path: Path) -> None:
    cells = [
        "%matplotlib inline\n!pip install nothing\nfrom absl import app, flags\n",
        "flags.DEFINE_integer('epochs', 1, 'How many.')\n",
        "import raydist\n",
        "def main(_):\n    raydist.context().report({'epochs': flags.FLAGS.epochs}, step=1)\n",
        "app.run(main)\n",
        "raise AssertionError('app.run exits')\n",
    ]
    code = [{"cell_type": "code", "source": source.splitlines(keepends=True)} for source in cells]
    notebook = {
        "cells": [{"cell_type": "markdown", "source": "# Title"}, *code],
        "metadata": {},
        "nbformat": 4,
    }
    path = write_script(tmp_path, json.dumps(notebook), "guide.ipynb")
    [task] = run_script(path, Cluster(), "--epochs", "5")
    assert task.values["failure"] is None, task.values["traceback"]
    assert task.values["metrics"] == {"epochs": 5.0}
    assert task.values["notes"] == [
        "left out of guide.ipynb, as it is not Python: '%matplotlib inline' (cell 1), "
        "'!pip install nothing' (cell 1)"
    ]


@pytest.mark.exhaustive("all", covered_by="[chief]")
@pytest.mark.parametrize("run_on", ["chief", "all"])
def test_guides_parameter_server_script_reaches_the_accuracy_of_one_device(
    run_on: str, tmp_path: Path
) -> None:
    cluster = Cluster(strategy="parameter_server", workers=2, ps=1)
    [chief] = run_script(FOLDER / "parameter_server.py", cluster, tmp_path, run_on=run_on)
    assert chief.values["failure"] is None, chief.values["traceback"]
    [(name, found)] = results(tmp_path).items()
    assert name == "chief-0"
    assert found["accuracy"] > 0.95
    assert found["iterations"] == 401  # none is lost, as with stock Keras 3


def test_script_of_parameter_servers_says_that_it_has_built_no_strategy_yet(tmp_path: Path) -> None:
    source = """
import raydist
import tensorflow as tf
from tests.support.inside import progress_of
progress = progress_of(raydist.context())
before = progress.status().is_joining
tf.distribute.ParameterServerStrategy(tf.distribute.cluster_resolver.TFConfigClusterResolver())
raydist.context().report({"before": before, "after": progress.status().is_joining}, step=1)
"""
    [chief] = ended(tmp_path, source, Cluster(strategy="parameter_server", workers=1, ps=1))
    assert chief["metrics"] == {"before": 1.0, "after": 0.0}, chief


def test_job_has_the_same_context() -> None:
    [task] = run_function("tests.support.script_functions:is_current", Cluster())
    assert task.values == {"is current": True}
