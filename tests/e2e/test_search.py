"""Searches as a person runs them: stopped early, interrupted, killed, continued, and nothing left of them."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from raydist.storage.checkpoints import CheckpointStore
from raydist.storage.filesystem import Storage
from raydist.storage.inheritance import inherit
from raydist.storage.run_record import read_record
from raydist.storage.run_storage import open_run
from tests.conftest import WaitUntil
from tests.e2e.conftest import BIN, ROOT, Ended, RunningRay, start_command, status_of
from tests.support.disks import mounted_disk
from tests.support.processes import PATIENCE
from tests.support.records import record_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

# Reports a value after each step, for as long as it is wanted; waits after two of them while a file is there.
PACED = """
import os
import time

import raydist


@raydist.job(params={"rate": 1.0, "steps": 12, "pause_s": 0.3, "hold": ""})
def train(ctx):
    for step in range(1, ctx.params["steps"] + 1):
        time.sleep(ctx.params["pause_s"])
        while step == 3 and os.path.exists(ctx.params["hold"]):
            time.sleep(0.1)
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
    pace = Pace(ctx.params["pause_s"] * (4 if ctx.params["learning_rate"] == 0.1 else 1))
    ctx.fit(model, data, epochs=ctx.params["epochs"], validation_data=(x[1500:], y[1500:]), callbacks=[pace])
"""


class Shell:
    """Runs commands with an embedded Ray, and knows which processes they have started."""

    def __init__(self, folder: Path, **environ: str) -> None:
        self.folder = folder
        self.storage = folder / "raydist_runs"
        # Every process that they start has it in its environment.
        self._mark = f"RAYDIST_TEST_MARK={folder}"
        name, _, value = self._mark.partition("=")
        self._environ = {**os.environ, **environ, name: value, "PYTHONPATH": str(ROOT)}

    def start(self, *command: str) -> subprocess.Popen[str]:
        return start_command(command, folder=self.folder, environ=self._environ)

    def raydist(self, *arguments: str) -> subprocess.Popen[str]:
        return self.start(str(BIN / "raydist"), *arguments)

    def finish(self, process: subprocess.Popen[str], *, timeout_s: float = 300) -> tuple[int, str, str]:
        """Returns the exit code, and what was written to stdout and stderr."""
        try:
            out, err = process.communicate(timeout=timeout_s * PATIENCE)
        finally:
            process.kill()
        return process.returncode, out, err

    def living(self) -> dict[int, str]:
        """Returns the processes that are left, without those that nobody has reaped."""
        found = {}
        for path in Path("/proc").glob("[0-9]*"):
            try:
                if self._mark.encode() in (path / "environ").read_bytes():
                    found[int(path.name)] = (path / "cmdline").read_text().replace("\0", " ")[:100]
            except OSError:
                continue
        return {pid: line for pid, line in found.items() if line}

    def end(self) -> None:
        for pid in self.living():
            os.kill(pid, signal.SIGKILL)

    def states(self) -> dict[str, str]:
        """Returns the state of each run."""
        runs = [path.parent.name for path in self.storage.glob("*/run.json")]
        return {run: record_of(self.storage, run)["state"] for run in sorted(runs)}


@contextlib.contextmanager
def opened_shell(folder: Path, **environ: str) -> Iterator[Shell]:
    (folder / "paced.py").write_text(PACED)
    (folder / "digits.py").write_text(DIGITS)
    shell = Shell(folder, **environ)
    try:
        yield shell
    finally:
        shell.end()


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    with opened_shell(tmp_path) as shell:
        yield shell


def nothing_is_left(shell: Shell, wait_until: WaitUntil) -> None:
    wait_until(lambda: not shell.living(), timeout_s=60)
    left = {
        run: state for run, state in shell.states().items() if state in ("STARTING", "RUNNING", "STOPPING")
    }
    assert left == {}


# Trains a run alone, or all of them one after another in one Ray.
ALONE = """
import json
import sys

import ray
import raydist

ray.init(address="local", num_cpus=2, log_to_driver=False, logging_level="ERROR")
for name, rate in json.loads(sys.argv[1]).items():
    params = {"learning_rate": rate, "pause_s": 0.0}
    raydist.run("digits.py", name=name, params=params, seed=3, resume="auto")
ray.shutdown()
"""


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """Runs without a search, each named by its learning rate."""
    with opened_shell(tmp_path_factory.mktemp("alone")) as shell:
        code, _, err = shell.finish(
            shell.start(sys.executable, "-c", ALONE, json.dumps({"0.01": 0.01, "0.1": 0.1}))
        )
        assert code == 0, err
        yield shell


def check_equal_to_run_alone(alone: Shell, rate: float, shell: Shell, run: str) -> None:
    """Compares metrics and weights bit for bit."""
    found, expected = record_of(shell.storage, run), record_of(alone.storage, str(rate))
    assert found["metrics"] == pytest.approx(expected["metrics"], abs=0)
    assert digest_of_weights(shell.storage, run) == digest_of_weights(alone.storage, str(rate))


def digest_of_weights(storage: Path, run: str) -> str:
    """Returns the digest of a run's newest checkpoint: of all weights and the optimizer's variables."""
    newest = CheckpointStore(open_run(str(storage), run=run)).newest()
    digest: str = newest.info["digest"]
    return digest


def test_search_is_interrupted_resumed_and_leaves_nothing(
    shell: Shell, alone: Shell, wait_until: WaitUntil
) -> None:
    command = [
        *("search", "digits.py", "--address", "local", "--study", "s", "--storage", str(shell.storage)),
        *("-p", "learning_rate=0.1,0.01,1e-5,1e-6", "-p", "pause_s=1", "--seed", "3"),
        *("--metric", "val_accuracy", "--scheduler", "asha", "--parallel", "2"),
    ]
    process = shell.raydist(*command)
    checkpoints = shell.storage / "s-00000" / "checkpoints"  # of the trial that takes four times as long

    def num_ended() -> int:
        return sum(state in ("SUCCEEDED", "CANCELLED") for state in shell.states().values())

    wait_until(lambda: num_ended() and len(list(checkpoints.glob("step-*"))) >= 2, timeout_s=400)
    process.send_signal(signal.SIGINT)
    code, out, err = shell.finish(process)
    assert code == 130, err
    assert "the same command with --study s --resume continues" in out
    nothing_is_left(shell, wait_until)
    interrupted = record_of(shell.storage, "s-00000")
    assert interrupted["state"] == "CANCELLED"
    assert 0 < interrupted["steps"] < 96

    code, out, err = shell.finish(shell.raydist(*command, "--resume", "--json"))
    assert code == 0, err
    nothing_is_left(shell, wait_until)
    study = json.loads(out)
    assert [study["study"], study["num_trials"], study["interrupted"]] == ["s", 4, False]
    trials = study["trials"]
    assert sorted(trial["run"] for trial in trials) == [f"s-{number:05}" for number in range(4)]
    assert {trial["state"] for trial in trials} == {"SUCCEEDED", "CANCELLED"}
    early = [trial for trial in trials if trial["state"] == "CANCELLED"]
    assert early, "asha has stopped none"
    assert all(trial["epochs"] < 8 for trial in early)
    assert study["best"] == trials[0]["run"] == "s-00000"
    values = [trial["value"] for trial in trials]
    assert values == sorted(values, reverse=True)
    resumed = record_of(shell.storage, "s-00000")
    assert resumed["steps"] == 96
    assert resumed["attempts"] > interrupted["attempts"]
    check_equal_to_run_alone(alone, 0.1, shell, "s-00000")

    code, table, err = shell.finish(shell.raydist(*command, "--resume", "--csv"))  # nothing is left to do
    assert code == 0, err
    rows = {row["run"]: row for row in csv.DictReader(io.StringIO(table))}
    assert {run: (row["state"], float(row["learning_rate"])) for run, row in rows.items()} == {
        trial["run"]: (
            "stopped early" if trial["stopped_early"] else trial["state"],
            trial["params"]["learning_rate"],
        )
        for trial in trials
    }
    assert float(rows["s-00000"]["val_accuracy"]) == pytest.approx(trials[0]["value"])
    assert record_of(shell.storage, "s-00000") == resumed
    code, out, _ = shell.finish(shell.raydist("list", "--study", "s", "--json", "--limit", "0"))
    assert {run["run"] for run in json.loads(out)["runs"]} == {trial["run"] for trial in trials}


# Tuners, one after another in one Ray; prints what each of them has told.
TUNERS = """
import json
import sys

import ray
from ray import tune
from ray.tune.schedulers import FIFOScheduler, PopulationBasedTraining, TrialScheduler

import raydist


class Pausing(FIFOScheduler):
    def on_trial_result(self, controller, trial, result):
        seen = self.__dict__.setdefault("seen", {})
        seen.setdefault(trial.trial_id, []).append(result["training_iteration"])
        if result["training_iteration"] in (2, 5) and not self.has_paused(trial, result):
            return TrialScheduler.PAUSE
        return TrialScheduler.CONTINUE

    def has_paused(self, trial, result):
        known = self.__dict__.setdefault("paused", set())
        place = (trial.trial_id, result["training_iteration"])
        is_known = place in known
        known.add(place)
        return is_known


def failing(ctx):
    if ctx.params["rate"] > 1:
        raise ValueError("no such rate")
    ctx.report({"value": 1.0}, step=1)


def fit(job, study, space, *, scheduler=None, metric="val_accuracy", reuse=False, **options):
    tuner = tune.Tuner(
        raydist.tune.trainable(job, study=study, storage=sys.argv[1], seed=3, **options),
        param_space={name: tune.grid_search(values) for name, values in space.items()},
        tune_config=tune.TuneConfig(metric=metric, mode="max", scheduler=scheduler, reuse_actors=reuse),
        run_config=tune.RunConfig(name=study, storage_path=sys.argv[1] + "/tune", verbose=0),
    )
    grid = tuner.fit()
    rows = [json.loads(one.metrics_dataframe.to_json(orient="records")) for one in grid if not one.error]
    errors = [str(one.error).strip() for one in grid if one.error]
    return {"errors": errors, "configs": [one.config for one in grid], "rows": rows}


ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
told, rates = {}, {"learning_rate": [0.01, 0.1]}
for study, job in (("paused", "digits.py"), ("counted", "counted.py")):
    scheduler = Pausing()
    told[study] = fit(job, study, rates, scheduler=scheduler, params={"pause_s": 0.5})
    told[study] |= {"num_paused": len(scheduler.paused), "seen": list(scheduler.seen.values())}
pbt = PopulationBasedTraining(
    time_attr="training_iteration",
    perturbation_interval=2,
    quantile_fraction=0.5,
    hyperparam_mutations={"learning_rate": [0.3, 0.4]},
)
poor_and_good = {"learning_rate": [1e-6, 0.5]}
options = {"params": {"pause_s": 1.0}, "keep": "all", "reuse": True}
told["pbt"] = fit("digits.py", "pbt", poor_and_good, scheduler=pbt, **options)
told["failing"] = fit(failing, "failing", {"rate": [1.0, 2.0]}, metric="value", workers=1, max_failures=0)
ray.shutdown()
print("told" + json.dumps(told))
"""

COUNTED = """
import time

import tensorflow as tf

import raydist


@raydist.job(params={"learning_rate": 1.0, "pause_s": 0.0})
def train(ctx):
    done = tf.Variable(0, dtype=tf.int64)
    ctx.restore(done=done)
    while done < 6:
        time.sleep(ctx.params["pause_s"])
        step = int(done.assign_add(1))
        ctx.report({"val_accuracy": ctx.params["learning_rate"] * step}, step=step)
        ctx.save(step=step, done=done)
"""


class Tuned(NamedTuple):
    """What the Tuners have told by their studies, and where their runs are."""

    told: dict[str, dict[str, Any]]
    shell: Shell

    def runs(self, study: str) -> list[str]:
        """Returns the names of the trials' runs, in their order; they have the experiment's id."""
        return sorted(path.name for path in self.shell.storage.glob(f"{study}-*_0000?"))


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tuned]:
    with opened_shell(tmp_path_factory.mktemp("tuned")) as shell:
        (shell.folder / "tuners.py").write_text(TUNERS)
        (shell.folder / "counted.py").write_text(COUNTED)
        process = shell.start(sys.executable, "tuners.py", str(shell.storage))
        code, out, err = shell.finish(process, timeout_s=900)
        assert code == 0, err
        yield Tuned(json.loads(out.partition("told")[2]), shell)


def test_tuners_leave_nothing(tuned: Tuned, wait_until: WaitUntil) -> None:
    nothing_is_left(tuned.shell, wait_until)


def test_trial_that_is_paused_equals_the_same_run_alone(tuned: Tuned, alone: Shell) -> None:
    told = tuned.told["paused"]
    assert (told["errors"], told["num_paused"]) == ([], 4)
    for run, rate in zip(tuned.runs("paused"), (0.01, 0.1), strict=True):
        record = record_of(tuned.shell.storage, run)
        assert [record["state"], record["steps"]] == ["SUCCEEDED", 96]
        assert record["attempts"] >= 3
        check_equal_to_run_alone(alone, rate, tuned.shell, run)


def test_trial_without_epochs_that_is_paused_goes_on_counting_its_reports(tuned: Tuned) -> None:
    told = tuned.told["counted"]
    assert (told["errors"], told["num_paused"], len(told["seen"])) == ([], 4, 2)
    for iterations in told["seen"]:
        assert sorted(set(iterations)) == list(range(1, len(set(iterations)) + 1))
        assert iterations == sorted(iterations)
        assert max(iterations) >= 5  # the last step may come with the end


def test_trial_that_exploits_another_continues_from_its_checkpoint_with_params_of_its_own(
    tuned: Tuned,
) -> None:
    told, shell = tuned.told["pbt"], tuned.shell
    assert told["errors"] == []
    rate, good = (config["learning_rate"] for config in told["configs"])
    assert good == 0.5
    assert rate in (0.3, 0.4)
    # With the other one's weights it is at once where that one is, and its own rate holds.
    exploited = next(row for row in told["rows"][0] if row["config/learning_rate"] > 0.2)
    assert exploited["epoch"] >= 3
    assert exploited["val_accuracy"] > 0.7
    run, _ = tuned.runs("pbt")
    folders = sorted((shell.storage / run / "checkpoints").glob("step-96-*"))
    index = json.loads((folders[-1] / "variables.json").read_text())
    (key,) = [entry["key"] for entry in index if "learning_rate" in entry["name"]]
    with np.load(folders[-1] / "variables.npz") as arrays:
        assert arrays[key] == pytest.approx(rate)
    record = record_of(shell.storage, run)
    assert [record["state"], record["steps"], record["spec"]["study"]] == ["SUCCEEDED", 96, "pbt"]
    assert record["attempts"] >= 2
    # The weights were copied bit by bit, and what was trained since is what a run of its own makes of them.
    store = CheckpointStore(open_run(str(shell.storage), run=run))
    copied = next(one for one in store.committed() if "inherited_from" in one.info)
    arrays_of = [Path(uri) / "variables.npz" for uri in (copied.uri, copied.info["inherited_from"])]
    assert arrays_of[0].read_bytes() == arrays_of[1].read_bytes()
    inherit(copied.info["inherited_from"], run=open_run(str(shell.storage), run="alone"))
    code, _, err = shell.finish(shell.start(sys.executable, "-c", ALONE, json.dumps({"alone": rate})))
    assert code == 0, err
    assert record_of(shell.storage, "alone")["steps"] == 96
    assert digest_of_weights(shell.storage, "alone") == digest_of_weights(shell.storage, run)


def test_trial_that_fails_ends_with_the_root_cause(tuned: Tuned) -> None:
    told = tuned.told["failing"]
    ((row,),) = told["rows"]
    assert row["value"] == 1.0
    (error,) = told["errors"]
    lines = error.splitlines()
    assert lines[-1].endswith("errors.TaskFailedError: worker/0 failed (attempt 0): ValueError: no such rate")
    assert sum(line.startswith("  File ") for line in lines) <= 3  # of Tune's call of the trial alone


MENDED = """
import time
from pathlib import Path

import raydist


@raydist.job(params={"rate": 1.0, "mended": ""})
def train(ctx):
    if ctx.params["rate"] == 2 and not Path(ctx.params["mended"]).exists():
        raise ValueError("no such rate")
    for step in range(1, 13):
        time.sleep(0.3)
        ctx.report({"value": ctx.params["rate"] * step}, step=step)
"""


def test_trials_that_fail_are_told_and_resume_runs_them_again(shell: Shell, wait_until: WaitUntil) -> None:
    (shell.folder / "mended.py").write_text(MENDED)
    mended = shell.folder / "mended.txt"
    command = [
        *("search", "mended.py", "--address", "local", "--study", "s", "--storage", str(shell.storage)),
        *("-p", "rate=1,2,3", "-p", f"mended={mended}"),
        *("--metric", "value", "--mode", "max", "--parallel", "1"),
    ]
    process = shell.raydist(*command, "--json")
    wait_until(lambda: shell.states().get("s-00000") == "RUNNING", timeout_s=300)
    os.kill(record_of(shell.storage, "s-00000")["driver"]["pid"], signal.SIGKILL)
    code, out, err = shell.finish(process)
    assert code == 3, err
    assert "2 of 3 trials failed, first s-00000: the process that drove the run died" in err
    assert "--study s --resume" in err
    rows = {trial["run"]: trial for trial in json.loads(out)["trials"]}
    assert {run: row["state"] for run, row in rows.items()} == {
        "s-00000": "FAILED",
        "s-00001": "FAILED",
        "s-00002": "SUCCEEDED",
    }
    assert "no such rate" in rows["s-00001"]["error"]["message"]
    nothing_is_left(shell, wait_until)
    other = record_of(shell.storage, "s-00002")

    mended.touch()
    code, out, err = shell.finish(shell.raydist(*command, "--resume", "--json"))
    assert code == 0, err
    assert [(trial["run"], trial["state"], trial["value"]) for trial in json.loads(out)["trials"]] == [
        ("s-00002", "SUCCEEDED", 36.0),
        ("s-00001", "SUCCEEDED", 24.0),
        ("s-00000", "SUCCEEDED", 12.0),
    ]
    assert shell.states() == dict.fromkeys(("s-00000", "s-00001", "s-00002"), "SUCCEEDED")
    assert record_of(shell.storage, "s-00002") == other
    nothing_is_left(shell, wait_until)


def test_search_on_s3_is_interrupted_and_resumed_also_when_its_state_is_lost(
    tmp_path: Path, s3_endpoint: str, s3_uri: str, wait_until: WaitUntil
) -> None:
    command = [
        *("search", "paced.py", "--address", "local", "--study", "s", "--storage", s3_uri),
        *("-p", "rate=1.0..2.0", "--num", "2", "-p", "steps=8", "--metric", "value", "--mode", "min"),
        *("--parallel", "1"),
    ]

    def state(run: str) -> str | None:
        storage = open_run(s3_uri, run=run)
        return read_record(storage).state.name if storage.exists(storage.record) else None

    with opened_shell(tmp_path) as shell:
        process = shell.raydist(*command)
        wait_until(lambda: state("s-00001") == "RUNNING", timeout_s=300)
        process.send_signal(signal.SIGINT)
        code, _, err = shell.finish(process)
        assert code == 130, err
        assert state("s-00000") == "SUCCEEDED"
        found = []
        for _ in range(2):
            code, out, err = shell.finish(shell.raydist(*command, "--resume", "--json"))
            assert code == 0, err
            trials = json.loads(out)["trials"]
            found.append([(one["run"], one["state"], one["params"], one["value"]) for one in trials])
            storage = Storage.open(s3_uri)
            for name in storage.list_names(".studies/s"):
                if name.startswith("experiment_state-"):
                    key = f".studies/s/{name}"
                    storage.write_bytes(key, storage.read_bytes(key)[:100])
        assert found[0] == found[1]
        assert {(run, state) for run, state, _, _ in found[0]} == {
            ("s-00000", "SUCCEEDED"),
            ("s-00001", "SUCCEEDED"),
        }
        # The values only grow, so that the best is the first and not the last.
        assert {value / params["rate"] for _, _, params, value in found[0]} == {1.0}
        wait_until(lambda: not shell.living(), timeout_s=60)


LEFT_IN_RAY = """
import json
import sys

import ray
from ray.util.placement_group import placement_group_table

ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
groups = [one["state"] for one in placement_group_table().values() if one["state"] != "REMOVED"]
taken = ray.cluster_resources()["CPU"] - ray.available_resources().get("CPU", 0)
print("left" + json.dumps([groups, taken]))
"""


def test_search_on_a_ray_that_stays_gives_back_all_that_it_had(
    running_ray: RunningRay, tmp_path: Path, wait_until: WaitUntil
) -> None:
    hold = tmp_path / "hold"
    hold.touch()
    command = [
        *("search", "paced.py", "--address", running_ray.address, "--study", "s", "-p", f"hold={hold}"),
        *("-p", "rate=nan,2,3", "--metric", "value", "--mode", "max", "--scheduler", "asha", "--grace", "2"),
        *("--parallel", "2"),
    ]

    def is_free(shell: Shell) -> bool:
        code, out, err = shell.finish(shell.start(sys.executable, "-c", LEFT_IN_RAY, running_ray.address))
        assert code == 0, err
        return bool(json.loads(out.partition("left")[2]) == [[], 0])

    with opened_shell(tmp_path, **running_ray.environ) as shell:
        process = shell.raydist(*command)
        wait_until(lambda: list(shell.states().values()).count("RUNNING") == 2, timeout_s=300)
        refused, _, err = shell.finish(shell.raydist(*command, "--resume"))
        assert refused == 2
        assert "study 's' is searched by process " in err
        (driver,) = drivers_of(process.pid)
        os.kill(driver, signal.SIGKILL)
        assert shell.finish(process)[0] == 3
        wait_until(lambda: is_free(shell), timeout_s=60)
        hold.unlink()

        code, out, err = shell.finish(shell.raydist(*command, "--resume", "--json"))
        assert code == 0, err
        trials = {trial["run"]: trial for trial in json.loads(out)["trials"]}
        assert {one["state"] for one in trials.values()} <= {"SUCCEEDED", "CANCELLED"}
        diverged = trials["s-00000"]
        assert [diverged["state"], diverged["stopped_early"]] == ["CANCELLED", True]
        assert 2 <= diverged["steps"] < 12
        wait_until(lambda: is_free(shell), timeout_s=60)
        nothing_is_left(shell, wait_until)


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
    assert f"`raydist resume {name}" in record_of(shell.storage, name)["error"]["message"]


def test_seeds_of_one_job_have_a_mean_and_a_spread(raydist: Callable[..., Ended], tmp_path: Path) -> None:
    (tmp_path / "digits.py").write_text(DIGITS)
    found = raydist("search", "digits.py", "--seeds", "3", "-p", "epochs=2", "--seed", "7", "--json")
    assert found.code == 0, found.err
    study = found.json
    assert [trial["seed"] for trial in study["trials"]] == [7, 8, 9]
    losses = [trial["metrics"]["loss"] for trial in study["trials"]]
    assert len(set(losses)) == 3
    spread = next(one for one in study["spreads"] if one["metric"] == "loss")
    assert [spread["num_trials"], spread["mean"]] == [3, pytest.approx(sum(losses) / 3)]
    assert [spread["lowest"], spread["highest"]] == [min(losses), max(losses)]
    assert status_of(tmp_path, study["trials"][1]["run"])["spec"]["seed"] == 8


def test_metric_that_no_trial_reports_ends_the_search(raydist: Callable[..., Ended], tmp_path: Path) -> None:
    (tmp_path / "paced.py").write_text(PACED)
    command = ("search", "paced.py", "-p", "rate=1,2,3,4", "-p", "steps=3", "--parallel", "1")
    found = raydist(*command, "--metric", "valeu", "--mode", "max")
    assert found.code == 2, found.err
    assert "raydist: metric is 'valeu', which the job does not report; did you mean value?" in found.err
    assert "Traceback" not in found.err
    assert len(list((tmp_path / "raydist_runs").glob("*/run.json"))) <= 2


def test_search_whose_storage_is_full_says_so_and_goes_on_once_there_is_room(
    shell: Shell, wait_until: WaitUntil
) -> None:
    with mounted_disk(shell.storage, size="400k"):  # of the four trials one or two fit
        command = [
            *("search", "digits.py", "--address", "local", "--study", "s", "--storage", str(shell.storage)),
            *("--parallel", "1"),
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
        assert shell.states() == {f"s-{number:05}": "SUCCEEDED" for number in range(4)}
        nothing_is_left(shell, wait_until)
