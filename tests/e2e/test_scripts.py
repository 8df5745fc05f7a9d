"""Programs that know nothing of raydist, on a real Ray."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raydist.outcome.status import Scope
from raydist.storage.run_storage import open_run
from tests.e2e.conftest import Ended, status_of
from tests.support.metric_rows import merge_rows, read_rows
from tests.support.same_results import files_of, lines_of, same_files, same_lines
from tests.support.scripts import PLAIN, QUIET, copy_of_scripts, results, run_bare

pytestmark = pytest.mark.slow

Submit = Callable[..., Ended]


def folder(path: Path) -> Path:
    path.mkdir()
    return path


def submit(raydist: Submit, tmp_path: Path, name: str, *arguments: str) -> dict[str, Any]:
    """Submits a script of tests/scripts; returns what `--json` prints."""
    script = copy_of_scripts(tmp_path) / name
    ended = raydist("submit", str(script), "--json", "--name", "r", *arguments)
    assert ended.code == 0, ended.out + ended.err
    return ended.json


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The results of the guide's script in two processes without raydist."""
    out = tmp_path_factory.mktemp("bare")
    run_bare("multi_worker_keras.py", out, workers=2, keras="legacy")
    return results(out)


def test_script_gives_the_losses_of_two_bare_processes(
    raydist: Submit, tmp_path: Path, bare: dict[str, Any]
) -> None:
    out = folder(tmp_path / "out")
    options = ("--workers", "2", "--keras", "legacy", "--", str(out))
    told = submit(raydist, tmp_path, "multi_worker_keras.py", *options)
    found = results(out)
    assert found.keys() == bare.keys() == {"worker-0", "worker-1"}
    for task, values in bare.items():
        for each, value in values.items():
            np.testing.assert_allclose(found[task][each], value, rtol=1e-5, atol=1e-5)
    assert (told["strategy"], told["attempts"], told["error"]) == ("multi_worker_mirrored", 1, None)
    assert status_of(tmp_path, "r")["spec"]["args"] == [str(out)]
    assert told["steps"] == 42
    assert set(told["metrics"]) == {"loss", "accuracy"}
    rows = merge_rows(read_rows(open_run(str(tmp_path / "raydist_runs"), run="r")))
    losses = [row.value for row in rows if row.scope is Scope.GLOBAL and row.name == "loss"]
    np.testing.assert_allclose(losses, found["worker-0"]["loss"], rtol=1e-6)


# In a copy of a script: worker/1 is killed in the first attempt, as soon as it has written a file.
KILLED = """
def _die():
    while not os.path.exists({file!r}):
        time.sleep(0.001)
    os.kill(os.getpid(), signal.SIGKILL)

import os, signal, threading, time
import raydist
if raydist.context().attempt == 0 and raydist.context().task.index == 1:
    threading.Thread(target=_die, daemon=True).start()
"""


def test_killed_worker_changes_nothing_of_a_script_that_builds_no_strategy(
    raydist: Submit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It begins again without what it had written: prints and files are those of plain Python."""
    for variable, value in QUIET.items():
        monkeypatch.setenv(variable, value)
    bare = Path(shutil.copytree(PLAIN, tmp_path / "bare"))
    [expected] = run_bare(bare / "callbacks_of_all_kinds.py", workers=0, keras="3")
    script = Path(shutil.copytree(PLAIN, tmp_path / "code")) / "callbacks_of_all_kinds.py"
    script.write_text(KILLED.format(file="training.csv") + script.read_text())
    quiet = [word for pair in QUIET.items() for word in ("--env", "=".join(pair))]
    options = ("--json", "--name", "r", "--workers", "2", "--keras", "3", *quiet)
    ended = raydist("submit", str(script), *options, timeout_s=300)
    assert ended.code == 0, ended.out + ended.err
    assert ended.json["attempts"] == 2
    for task in ("worker/0", "worker/1"):
        printed = raydist("logs", "r", "--task", task).out
        same_lines(lines_of(printed), lines_of(expected), rtol=1e-4)
    output = tmp_path / "raydist_runs" / "r" / "output"
    same_files(output / "working_dir", bare, rtol=1e-4)
    assert set(files_of(output / "earlier_attempts")) == {"logs/fit/TIME/train/events"}


def test_parameter_server_script_trains(raydist: Submit, tmp_path: Path) -> None:
    out = folder(tmp_path / "out")
    arguments = ("--workers", "2", "--ps", "1", "--run-on", "chief", "--", str(out))
    told = submit(raydist, tmp_path, "parameter_server.py", *arguments)
    assert told["strategy"] == "parameter_server"
    assert results(out)["chief-0"]["accuracy"] > 0.95
    assert "serving as worker" not in raydist("logs", "r", "--task", "worker/1").out


KERAS_ALONE = """
import keras
from sklearn.datasets import load_digits

keras.utils.set_random_seed(1)
x, y = load_digits(return_X_y=True)
model = keras.Sequential([keras.layers.Dense(32, "relu"), keras.layers.Dense(10)])
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile("adam", loss, metrics=["accuracy"])
model.fit(x[:1500] / 16, y[:1500], batch_size=50, epochs=3, shuffle=False, verbose=0)
model.save("digits.keras")
print("found", *model.evaluate(x / 16, y, verbose=0), *model.predict(x[:2] / 16, verbose=0).ravel())
"""


def test_script_of_keras_alone_trains_on_parameter_servers(raydist: Submit, tmp_path: Path) -> None:
    """One worker trains in the order of one device, so all numbers are that device's."""

    def numbers(text: str) -> list[float]:
        [line] = [line for line in text.splitlines() if line.startswith("found ")]
        return [float(word) for word in line.split()[1:]]

    (folder(tmp_path / "code") / "digits.py").write_text(KERAS_ALONE)
    script = tmp_path / "code" / "digits.py"
    bare = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, check=True)
    asked = ("--strategy", "parameter_server", "--workers", "1", "--ps", "1", "--json", "--name", "r")
    ended = raydist("submit", str(script), *asked)
    assert ended.code == 0, ended.err
    assert (ended.json["strategy"], ended.json["steps"]) == ("parameter_server", 90)
    assert numbers(raydist("logs", "r", "--task", "chief/0").out) == pytest.approx(
        numbers(bare.stdout), abs=1e-4
    )
    assert (tmp_path / "raydist_runs/r/output/working_dir/digits.keras").exists()
    # The chief alone would have found the same.
    assert not any("had nothing to do" in note for note in ended.json["notes"])
    assert ended.json["checkpoint"].endswith("step-90-a0")


def test_exit_code_and_module_and_resume_with_other_arguments(raydist: Submit, tmp_path: Path) -> None:
    package = folder(tmp_path / "package")
    (package / "__init__.py").write_text("")
    (package / "train.py").write_text(
        "import sys, raydist\nfrom package import __name__ as name\n"
        "raydist.context().report({'value': float(sys.argv[1])}, step=1)\n"
        "assert __name__ == '__main__' and sys.argv[0].endswith('train.py')\n"
    )
    (tmp_path / "exits.py").write_text("import sys\nprint(sys.argv)\nsys.exit(int(sys.argv[1]))\n")
    ended = raydist("submit", "exits.py", "--json", "--", "3")
    assert ended.code == 1
    assert "exits.py ended with exit code 3" in ended.json["error"]["message"]
    ended = raydist("submit", "-m", "package.train", "--json", "--", "1.5")
    assert (ended.code, ended.json["metrics"]) == (0, {"value": 1.5}), ended.err
    ended = raydist("submit", "package.train", "--json", "--name", "again", "--", "2.5")
    assert ended.json["metrics"] == {"value": 2.5}
    ended = raydist("resume", "again", "--json", "--", "3.5")
    assert (ended.code, ended.json["metrics"]) == (0, {"value": 3.5}), ended.err


OUTPUT = """
import json, os, sys, time, warnings
import tensorflow as tf

index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
print("equal", flush=True)
print(f"I am {index}")
if index == 1:
    print("only here")
for count in range(5):
    print(f"\\r{count + 1}/5 [{time.time() % 7:.2f}s]", end="", file=sys.stderr)
print(file=sys.stderr)
warnings.warn("of the script")
tf.constant(1.0)
print("no end", end="")
time.sleep(3)
open("/absent")
"""


def test_output_is_shown_as_of_one_process(raydist: Submit, tmp_path: Path) -> None:
    (tmp_path / "prints.py").write_text(OUTPUT)
    ended = raydist("submit", "prints.py", "--workers", "2")
    assert ended.code == 1
    before, _, after = ended.out.partition("\nTraceback (most recent call last):\n")
    shown = [line for line in before.splitlines() if " tasks " not in line and "running  0:" not in line]
    shown = shown[shown.index("equal") :]
    of_others = [line for line in shown if line.startswith("[worker/1]")]
    assert of_others == ["[worker/1] I am 1", "[worker/1] only here"]
    bar = shown[2]
    assert bar.startswith("5/5 ["), ended.out
    warning = ["prints.py:13: UserWarning: of the script", '  warnings.warn("of the script")']
    of_chief = [line for line in shown if line not in of_others]
    assert of_chief == ["equal", "I am 0", bar, *warning, "no end"]
    assert after.count("FileNotFoundError: [Errno 2]") == 2  # of the traceback and of the error
    assert "Traceback" not in after

    ended = raydist("submit", "prints.py", "--workers", "2", "--json")
    assert (ended.code, ended.json["state"]) == (1, "FAILED")
    assert ended.err.splitlines().count("equal") == 1
    assert "[worker/1] only here" in ended.err.splitlines()
