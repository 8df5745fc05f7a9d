"""submit --detach with real training: it outlives the shell and its controller, and can be found again."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from tests.conftest import WaitUntil
from tests.e2e.conftest import Raydist, RunningRay, start_raydist, status_of

pytestmark = pytest.mark.slow

ATTACH = """
import json, sys
import raydist

handle = raydist.attach(sys.argv[1], storage=sys.argv[2])
result = handle.result(timeout=150)
told = {"result": result.as_dict(), "state": handle.status().state.value, "log": handle.logs(task="worker/1")}
print(json.dumps(told))
"""


SCRIPT = """
import json, sys
import raydist

table = list(range(1000))


def train(ctx):
    import tensorflow as tf

    ctx.report({"total": sum(table), "attempt": ctx.attempt}, step=1)


handle = raydist.submit(train, detach=True, name="scripted", address=sys.argv[1])
print(json.dumps({"name": handle.name, "state": handle.status().state.value}))
"""


def test_function_of_a_script_goes_on_without_it(running_ray: RunningRay, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    told = running_ray.told_by(tmp_path, "script.py", running_ray.address)
    assert told == {"name": "scripted", "state": "STARTING"}
    (tmp_path / "script.py").unlink()
    os.kill(status_of(tmp_path, "scripted")["driver"]["pid"], signal.SIGKILL)
    # Another process, which is not told where the run's Ray is.
    result = running_ray.told_by(tmp_path, "-c", ATTACH, "scripted", tmp_path / "raydist_runs")["result"]
    assert (result["state"], result["attempts"]) == ("SUCCEEDED", 2)
    assert result["metrics"] == {"total": 499500.0, "attempt": 1.0}


STEPS = """
import time
import raydist


@raydist.job(workers=2, params={"log": "", "pause_s": 0.1}, export=False)
def train(ctx):
    import tensorflow as tf

    class Watch(tf.keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            time.sleep(ctx.params["pause_s"])
            if ctx.is_chief:
                with open(ctx.params["log"], "a") as file:
                    file.write(f"{ctx.attempt} {int(self.model.optimizer.iterations.numpy())}\\n")

    with ctx.strategy.scope():
        model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(1)])
        model.compile("adam", loss="mse")
    data = tf.data.Dataset.from_tensors((tf.ones((8, 4)), tf.zeros((8, 1)))).repeat(60)
    ctx.fit(model, data, epochs=1, callbacks=[Watch()])
"""


def test_killed_controller_costs_no_steps_without_a_checkpoint(
    raydist: Raydist, tmp_path: Path, wait_until: WaitUntil
) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "steps.py").write_text(STEPS)
    log, job = tmp_path / "steps", str(tmp_path / "code" / "steps.py")
    options = ("--name", "steps", "--checkpoint-every", "1000", "-p", f"log={log}")
    assert raydist("submit", job, "--detach", "--json", *options).code == 0
    wait_until(lambda: log.exists() and len(log.read_text().splitlines()) >= 20, timeout_s=120)
    os.kill(status_of(tmp_path, "steps")["driver"]["pid"], signal.SIGKILL)
    wait_until(lambda: status_of(tmp_path, "steps")["state"] == "SUCCEEDED", timeout_s=120)
    done = [tuple(map(int, line.split())) for line in log.read_text().splitlines()]
    first, second = ([step for attempt, step in done if attempt == number] for number in (0, 1))
    assert (first[0], second[-1]) == (1, 60)
    assert 0 <= first[-1] + 1 - second[0] <= 2, (first[-1], second[0])
    [note] = [one for one in status_of(tmp_path, "steps")["notes"] if "had in memory" in one]
    assert note.startswith(f"attempt 1 continued from step {second[0] - 1}, which the chief's host")


def test_what_the_cluster_cannot_give_is_told_before_the_shell_returns(
    raydist: Raydist, slow_job: str, tmp_path: Path
) -> None:
    ended = raydist("submit", slow_job, "--detach", "--json", "--workers", "99", "--name", "large")
    assert ended.code == 3
    assert ended.json["state"] == "FAILED"
    assert not (tmp_path / "raydist_runs" / "large").exists()


def test_second_ctrl_c_in_a_blocking_submit_stops_at_once(
    raydist: Raydist, running_ray: RunningRay, slow_job: str, tmp_path: Path, wait_until: WaitUntil
) -> None:
    process = start_raydist(
        running_ray, tmp_path, "submit", slow_job, "--name", "hasty", "-p", "epochs=500", "--json"
    )
    wait_until(lambda: status_of(tmp_path, "hasty")["steps"] >= 2, timeout_s=240)
    pids = [task["pid"] for task in status_of(tmp_path, "hasty")["tasks"]]
    process.send_signal(signal.SIGINT)
    wait_until(lambda: status_of(tmp_path, "hasty")["state"] != "RUNNING", timeout_s=15)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert json.loads(out)["state"] == "CANCELLED"
    assert "Traceback" not in err
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), timeout_s=15)
