"""With each minor version: a kill, the commands on a run, and ways in with a token and without one."""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import WaitUntil
from tests.e2e.conftest import BIN, Ended, start_command, status_of
from tests.support.processes import PATIENCE

pytestmark = pytest.mark.timeout(1200)
JOB = """
import os, signal, time
from pathlib import Path

import keras
import numpy as np
import raydist


@raydist.job(workers=2, params={"kill": "", "pause_s": 0.0}, checkpoint_every=2)
def train(ctx):
    class Kill(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            time.sleep(ctx.params["pause_s"] if ctx.attempt == 0 else 0.0)
            if ctx.params["kill"] and batch == 4 and not ctx.is_chief:
                with open(ctx.params["kill"], "x"):  # once
                    os.kill(os.getpid(), signal.SIGKILL)

    x = np.arange(160, dtype="float32").reshape(80, 2) / 160
    keras.utils.set_random_seed(1)
    with ctx.strategy.scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3), keras.layers.Dense(1)])
        model.compile("adam", "mse")
    ctx.fit(model, x, x.sum(axis=1), batch_size=8, epochs=1, callbacks=[] if ctx.attempt else [Kill()])
    ctx.report({"norm": float(sum(np.abs(one).sum() for one in model.get_weights()))}, step=ctx.step)
"""


@pytest.fixture
def job(tmp_path: Path) -> str:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "job.py").write_text(JOB)
    return str(tmp_path / "code" / "job.py")


@pytest.mark.exhaustive("token-disabled", covered_by="the other case, and both with the versions of CI")
@pytest.mark.parametrize(("calm", "killed"), [("token asked for", "no token"), ("token", "disabled")])
def test_killed_worker_changes_nothing_on_an_embedded_ray(
    job: str, tmp_path: Path, calm: str, killed: str
) -> None:
    kill = tmp_path / "killed"
    norms = []
    for access, param in ((calm, ""), (killed, kill)):
        command = [BIN / "raydist", "submit", job, "--json", "-p", f"kill={param}"]
        process = start_command(command, folder=tmp_path, environ=environ_with(access, home=tmp_path))
        out, err = process.communicate(timeout=240 * PATIENCE)
        assert process.returncode == 0, err
        result = json.loads(out)
        assert (result["state"], result["steps"]) == ("SUCCEEDED", 10)
        norms.append(result["metrics"]["norm"])
    assert norms[0] == pytest.approx(norms[1], abs=1e-6)
    assert kill.exists()


def environ_with(access: str, *, home: Path) -> dict[str, str]:
    """Returns the environment of a user who has a token of Ray or none, and asks for one or not."""
    left_out = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
    environ = {name: value for name, value in os.environ.items() if name not in left_out}
    token = home / ".ray" / "auth_token"
    if access == "no token":
        token.unlink(missing_ok=True)
    else:
        token.parent.mkdir(exist_ok=True)
        token.write_text(secrets.token_hex(32))
    modes = {"token asked for": "token", "disabled": "disabled"}
    return environ | {"HOME": str(home)} | ({"RAY_AUTH_MODE": modes[access]} if access in modes else {})


def test_detached_run_is_listed_stopped_and_resumed(
    raydist: Callable[..., Ended], job: str, tmp_path: Path, wait_until: WaitUntil
) -> None:
    submitted = raydist("submit", job, "--detach", "--json", "--name", "far", "-p", "pause_s=2")
    assert submitted.code == 0, submitted.err
    wait_until(lambda: status_of(tmp_path, "far")["checkpoint"], timeout_s=240 * PATIENCE)
    [listed] = json.loads(raydist("list", "--json").out)["runs"]
    assert (listed["run"], listed["state"]) == ("far", "RUNNING")
    assert raydist("stop", "far").code == 0
    assert status_of(tmp_path, "far")["state"] == "CANCELLED"
    begun_s = time.time()
    resumed = raydist("resume", "far", "--json")
    assert resumed.code == 0, resumed.err
    assert (resumed.json["state"], resumed.json["steps"]) == ("SUCCEEDED", 10)
    assert status_of(tmp_path, "far")["updated_at_s"] >= begun_s
