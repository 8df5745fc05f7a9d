"""Searches as a person runs them: stopped early, interrupted, killed, continued, and nothing left of them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from raydist.storage.checkpoints import CheckpointStore
from raydist.storage.run_storage import open_run
from tests.e2e.conftest import BIN, ROOT
from tests.support.disks import mounted_disk
from tests.support.processes import PATIENCE
from tests.support.records import record_of

WaitUntil = Callable[..., None]

pytestmark = pytest.mark.timeout(1200)

# Reports a value after each step, for as long as it is wanted.
PACED = """
import time

import raydist


@raydist.job(params={"rate": 1.0, "steps": 12, "pause_s": 0.3})
def train(ctx):
    for step in range(1, ctx.params["steps"] + 1):
        time.sleep(ctx.params["pause_s"])
        ctx.report({"value": ctx.params["rate"] * step}, step=step)
"""

DIGITS = """
import time

import keras
from sklearn.datasets import load_digits

import raydist


class Pace(keras.callbacks.Callback):
    def __init__(self, pause_s):
        super().__init__()
        self.pause_s = pause_s

    def on_epoch_begin(self, epoch, logs=None):
        time.sleep(self.pause_s)


@raydist.job(params={"epochs": 8, "learning_rate": 1e-3, "pause_s": 0.0})
def train(ctx):
    x, y = load_digits(return_X_y=True)
    x = x / 16
    data = raydist.data.from_arrays(x[:1500], y[:1500]).batches(global_batch_size=125, seed=1)
    with ctx.strategy.scope():
        model = keras.Sequential([keras.layers.Dense(32, "relu"), keras.layers.Dense(10)])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(ctx.params["learning_rate"]), loss, metrics=["accuracy"])
    pace = Pace(ctx.params["pause_s"])
    ctx.fit(model, data, epochs=ctx.params["epochs"], validation_data=(x[1500:], y[1500:]), callbacks=[pace])
"""


class Shell:
    """Runs commands with an embedded Ray, and knows which processes they have started."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.storage = folder / "raydist_runs"
        # Every process that they start has it in its environment.
        self._mark = f"RAYDIST_TEST_MARK={folder}"
        name, _, value = self._mark.partition("=")
        self._environ = {**os.environ, name: value, "PYTHONPATH": str(ROOT)}

    def start(self, *command: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            command,
            cwd=self.folder,
            env=self._environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def raydist(self, *arguments: str) -> subprocess.Popen[str]:
        return self.start(str(BIN / "raydist"), *arguments)

    def finish(self, process: subprocess.Popen[str]) -> tuple[int, str, str]:
        """Returns the exit code, and what was written to stdout and stderr."""
        try:
            out, err = process.communicate(timeout=300 * PATIENCE)
        finally:
            process.kill()
        return process.returncode, out, err

    def living(self) -> dict[int, str]:
        """Returns the processes that are left, without those that nobody has reaped."""
        found = {}
        for path in Path("/proc").glob("[0-9]*"):
            try:
                if self._mark.encode() in (path / "environ").read_bytes():
                    found[int(path.name)] = (path / "cmdline").read_text().replace("\\0", " ")[:100]
            except OSError:
                continue
        return {pid: line for pid, line in found.items() if line}

    def states(self) -> dict[str, str]:
        """Returns the state of each run."""
        runs = [path.parent.name for path in self.storage.glob("*/run.json")]
        return {run: record_of(self.storage, run)["state"] for run in sorted(runs)}


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    (tmp_path / "paced.py").write_text(PACED)
    (tmp_path / "digits.py").write_text(DIGITS)
    shell = Shell(tmp_path)
    yield shell
    for pid in shell.living():
        os.kill(pid, signal.SIGKILL)


def nothing_is_left(shell: Shell, wait_until: WaitUntil) -> None:
    wait_until(lambda: not shell.living(), timeout_s=60)
    left = {
        run: state for run, state in shell.states().items() if state in ("STARTING", "RUNNING", "STOPPING")
    }
    assert left == {}


# The same runs without a search, one after another in one Ray.
ALONE = """
import json
import sys

import ray
import raydist

ray.init(address="local", num_cpus=2, log_to_driver=False, logging_level="ERROR")
for run, rate in json.loads(sys.argv[1]).items():
    params = {"learning_rate": rate, "pause_s": 0.0}
    raydist.run("digits.py", name=f"{run}-alone", params=params, seed=3)
ray.shutdown()
"""


def digest_of_weights(storage: Path, run: str) -> str:
    """Returns the digest of a run's newest checkpoint: of all weights and the optimizer's variables."""
    newest = CheckpointStore(open_run(str(storage), run=run)).newest()
    assert newest is not None
    digest: str = newest.info["digest"]
    return digest


def test_search_of_12_trials_is_interrupted_resumed_and_leaves_nothing(
    shell: Shell, wait_until: WaitUntil
) -> None:
    command = [
        *("search", "digits.py", "--address", "local", "--study", "s", "--storage", str(shell.storage)),
        *("-p", "learning_rate=log:1e-4..1.0", "-p", "pause_s=0.2", "--num", "12", "--seed", "3"),
        *("--metric", "val_accuracy", "--scheduler", "asha", "--parallel", "2"),
    ]
    process = shell.raydist(*command)

    def num_ended() -> int:
        return sum(state in ("SUCCEEDED", "CANCELLED") for state in shell.states().values())

    wait_until(lambda: num_ended() >= 3, timeout_s=400)
    process.send_signal(signal.SIGINT)
    code, out, err = shell.finish(process)
    assert code == 130, err
    assert "the same command with --study s --resume continues" in out
    nothing_is_left(shell, wait_until)
    before = shell.states()
    assert 3 <= len(before) < 12
    ended = {run: record_of(shell.storage, run) for run in before if before[run] == "SUCCEEDED"}

    code, out, err = shell.finish(shell.raydist(*command, "--resume", "--json"))
    assert code == 0, err
    nothing_is_left(shell, wait_until)
    study = json.loads(out)
    assert [study["study"], study["num_trials"], study["interrupted"]] == ["s", 12, False]
    trials = study["trials"]
    assert sorted(trial["run"] for trial in trials) == [f"s-{number:05}" for number in range(12)]
    assert {trial["state"] for trial in trials} == {"SUCCEEDED", "CANCELLED"}
    early = [trial for trial in trials if trial["state"] == "CANCELLED"]
    assert early, "asha has stopped none"
    assert all(trial["epochs"] < 8 for trial in early)
    # What had succeeded before was not trained again.
    assert {run: record_of(shell.storage, run) for run in ended} == ended
    assert study["best"] == trials[0]["run"]
    values = [trial["value"] for trial in trials]
    assert values == sorted(values, reverse=True)

    whole = {trial["run"]: trial for trial in trials if trial["state"] == "SUCCEEDED"}
    rates = {run: trial["params"]["learning_rate"] for run, trial in whole.items()}
    code, _, err = shell.finish(shell.start(sys.executable, "-c", ALONE, json.dumps(rates)))
    assert code == 0, err
    for run, trial in whole.items():
        alone = record_of(shell.storage, f"{run}-alone")
        assert alone["metrics"] == pytest.approx(trial["metrics"], abs=0)
        assert digest_of_weights(shell.storage, run) == digest_of_weights(shell.storage, f"{run}-alone")

    code, out, _ = shell.finish(shell.raydist("list", "--study", "s", "--json", "--limit", "0"))
    assert {run["run"] for run in json.loads(out)["runs"]} == {trial["run"] for trial in trials}


def drivers_of(supervisor: int) -> list[int]:
    """Returns the children of a supervisor: the process that drives the search."""
    children = Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split()
    return [int(pid) for pid in children]


def test_search_whose_driver_is_killed_leaves_nothing_and_can_be_resumed(
    shell: Shell, wait_until: WaitUntil
) -> None:
    command = [
        *("search", "paced.py", "--address", "local", "--storage", str(shell.storage)),
        *("-p", "rate=1,2,3,4", "--metric", "value", "--mode", "max", "--parallel", "2"),
    ]
    process = shell.raydist(*command)
    wait_until(lambda: list(shell.states().values()).count("RUNNING") == 2, timeout_s=300)
    time.sleep(3)  # Tune has stored which trials there are
    (driver,) = drivers_of(process.pid)
    os.kill(driver, signal.SIGKILL)
    code, _, err = shell.finish(process)
    assert code == 3, err
    assert "its trials have ended, and the same command with --resume continues" in err
    nothing_is_left(shell, wait_until)
    assert "FAILED" in shell.states().values()

    code, out, err = shell.finish(shell.raydist(*command, "--resume", "--json"))
    assert code == 0, err
    trials = json.loads(out)["trials"]
    assert [(trial["params"]["rate"], trial["value"], trial["state"]) for trial in trials] == [
        (rate, 12 * rate, "SUCCEEDED") for rate in (4.0, 3.0, 2.0, 1.0)
    ]
    nothing_is_left(shell, wait_until)


PBT = """
import json
import sys

import ray
from ray import tune
from ray.tune.schedulers import PopulationBasedTraining

import raydist

ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
scheduler = PopulationBasedTraining(
    time_attr="training_iteration",
    perturbation_interval=2,
    quantile_fraction=0.5,
    hyperparam_mutations={"learning_rate": [0.3, 0.4]},
)
tuner = tune.Tuner(
    raydist.tune.trainable("digits.py", study="pbt", storage=sys.argv[1], params={"pause_s": 1.0}),
    param_space={"learning_rate": tune.grid_search([1e-6, 0.5])},
    tune_config=tune.TuneConfig(metric="val_accuracy", mode="max", scheduler=scheduler, reuse_actors=True),
    run_config=tune.RunConfig(storage_path=sys.argv[1] + "/tune", verbose=0),
)
grid = tuner.fit()
assert not grid.errors, grid.errors
rows = [json.loads(one.metrics_dataframe.to_json(orient="records")) for one in grid]
told = [{"config": one.config, "rows": found} for one, found in zip(grid, rows)]
ray.shutdown()
print("told" + json.dumps(told))
"""


def test_trial_that_exploits_another_continues_from_its_checkpoint_with_params_of_its_own(
    shell: Shell, wait_until: WaitUntil
) -> None:
    (shell.folder / "pbt.py").write_text(PBT)
    code, out, err = shell.finish(shell.start(sys.executable, "pbt.py", str(shell.storage)))
    assert code == 0, err
    poor, good = json.loads(out.partition("told")[2])
    nothing_is_left(shell, wait_until)
    assert good["config"]["learning_rate"] == 0.5
    assert poor["config"]["learning_rate"] in (0.3, 0.4)
    # With the other one's weights it is at once where that one is, and its own rate holds.
    exploited = next(row for row in poor["rows"] if row["config/learning_rate"] > 0.2)
    assert exploited["epoch"] >= 3
    assert exploited["val_accuracy"] > 0.7
    folders = sorted((shell.storage / "pbt-00000" / "checkpoints").glob("step-96-*"))
    index = json.loads((folders[-1] / "variables.json").read_text())
    (rate,) = [entry["key"] for entry in index if "learning_rate" in entry["name"]]
    with np.load(folders[-1] / "variables.npz") as arrays:
        assert arrays[rate] == pytest.approx(poor["config"]["learning_rate"])
    record = record_of(shell.storage, "pbt-00000")
    assert [record["state"], record["steps"], record["spec"]["study"]] == ["SUCCEEDED", 96, "pbt"]
    assert record["attempts"] >= 2


KILLED = """
import sys

import ray
from ray import tune

import raydist

ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
tuner = tune.Tuner(
    raydist.tune.trainable("paced.py", storage=sys.argv[1], params={"steps": 1000}),
    param_space={"rate": tune.grid_search([1.0, 2.0, 3.0, 4.0])},
    run_config=tune.RunConfig(storage_path=sys.argv[1] + "/tune", verbose=0),
)
tuner.fit()
"""


def test_tuner_that_is_killed_leaves_no_task_and_no_run_that_seems_to_run(
    shell: Shell, wait_until: WaitUntil
) -> None:
    (shell.folder / "killed.py").write_text(KILLED)
    process = shell.start(sys.executable, "killed.py", str(shell.storage))
    wait_until(lambda: list(shell.states().values()).count("RUNNING") == 2, timeout_s=300)
    process.kill()
    process.communicate()

    def tasks() -> list[str]:
        # Ray's own agents stay when a script's ray.init is killed.
        return [line for line in shell.living().values() if "Agent" not in line and "gcs_server" not in line]

    wait_until(lambda: not tasks(), timeout_s=60)
    assert set(shell.states().values()) == {"FAILED"}
    (name, *_) = shell.states()
    assert f"`raydist resume {name}`" in record_of(shell.storage, name)["error"]["message"]


FAILING = """
import sys

import ray
from ray import tune

import raydist

ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")


def train(ctx):
    if ctx.params["rate"] > 1:
        raise ValueError("no such rate")
    ctx.report({"value": 1.0}, step=1)


tuner = tune.Tuner(
    raydist.tune.trainable(train, storage=sys.argv[1], workers=1, max_failures=0),
    param_space={"rate": tune.grid_search([1.0, 2.0])},
    run_config=tune.RunConfig(storage_path=sys.argv[1] + "/tune", verbose=0),
)
good, bad = tuner.fit()
assert good.error is None, good.error
assert good.metrics["value"] == 1.0
print("told" + str(bad.error).strip().splitlines()[-1])
ray.shutdown()
"""


def test_trial_that_fails_ends_with_the_root_cause(shell: Shell, wait_until: WaitUntil) -> None:
    (shell.folder / "failing.py").write_text(FAILING)
    code, out, err = shell.finish(shell.start(sys.executable, "failing.py", str(shell.storage)))
    assert code == 0, err
    sentence = out.partition("told")[2]
    assert "worker/0 failed (attempt 0): ValueError: no such rate" in sentence
    nothing_is_left(shell, wait_until)


def test_seeds_of_one_job_have_a_mean_and_a_spread(shell: Shell, wait_until: WaitUntil) -> None:
    command = ("search", "digits.py", "--address", "local", "--storage", str(shell.storage), "--seeds", "3")
    code, out, err = shell.finish(shell.raydist(*command, "-p", "epochs=2", "--seed", "7", "--json"))
    assert code == 0, err
    study = json.loads(out)
    assert [trial["seed"] for trial in study["trials"]] == [7, 8, 9]
    losses = [trial["metrics"]["loss"] for trial in study["trials"]]
    assert len(set(losses)) == 3
    spread = next(one for one in study["spreads"] if one["metric"] == "loss")
    assert [spread["num_trials"], spread["mean"]] == [3, pytest.approx(sum(losses) / 3)]
    assert [spread["lowest"], spread["highest"]] == [min(losses), max(losses)]
    assert record_of(shell.storage, study["trials"][1]["run"])["spec"]["seed"] == 8
    nothing_is_left(shell, wait_until)


def test_metric_that_no_trial_reports_ends_the_search(shell: Shell, wait_until: WaitUntil) -> None:
    command = ("search", "paced.py", "--address", "local", "--storage", str(shell.storage), "--mode", "max")
    asked = ("-p", "rate=1,2,3,4", "-p", "steps=3", "--metric", "valeu", "--parallel", "1")
    code, _, err = shell.finish(shell.raydist(*command, *asked))
    assert code == 2, err
    assert "raydist: metric is 'valeu', which the job does not report; did you mean value?" in err
    assert "Traceback" not in err
    nothing_is_left(shell, wait_until)
    assert len(shell.states()) <= 2


def test_search_whose_storage_is_full_says_so_and_goes_on_once_there_is_room(
    shell: Shell, wait_until: WaitUntil
) -> None:
    with mounted_disk(shell.storage, size="400k"):  # of the four trials one or two fit
        command = [
            *(
                "search",
                "digits.py",
                "--address",
                "local",
                "--storage",
                str(shell.storage),
                "--parallel",
                "1",
            ),
            *("-p", "learning_rate=1e-3,1e-2,0.1,0.2", "-p", "epochs=2", "--metric", "val_accuracy"),
        ]
        code, _, err = shell.finish(shell.raydist(*command))
        assert code == 4, err
        assert "No space left on device" in err or "no space left" in err
        assert "--resume" in err
        assert "Traceback" not in err
        subprocess.run(["mount", "-o", "remount,size=50m", str(shell.storage)], check=True)
        code, out, err = shell.finish(shell.raydist(*command, "--resume", "--json"))
        assert code == 0, err
        assert [trial["state"] for trial in json.loads(out)["trials"]] == 4 * ["SUCCEEDED"]
        nothing_is_left(shell, wait_until)
