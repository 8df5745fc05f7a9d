"""jobs/serving.py answers real requests with the outputs of the run's model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.test_search import DIGITS
from tests.support.guide import ROOT

pytestmark = pytest.mark.timeout(1200)

TRAIN = """
import raydist

result = raydist.run("digits.py", name="calm", address="local", params={"epochs": 1})
print(result.state.value)
"""
# Requests of several sizes at once, wrong ones among them, and what Keras makes of the same images.
ASK = """
import json
import sys
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import keras
import numpy as np
import ray
from ray import serve
from sklearn.datasets import load_digits

from jobs.serving import app


def ask(body, path=""):
    request = urllib.request.Request(f"http://127.0.0.1:8765/{path}", data=json.dumps(body).encode())
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


ray.init(address="local", num_cpus=2, log_to_driver=False, logging_level="ERROR", include_dashboard=False)
serve.start(http_options={"host": "127.0.0.1", "port": 8765})
serve.run(app({"run": "raydist_runs/calm", "num_replicas": "1"}))
x = load_digits().data[:60] / 16
sizes = [1, 2, 3, 4, 20, 30]
ends = np.cumsum(sizes)
bodies = [{"instances": x[end - size : end].tolist()} for size, end in zip(sizes, ends)]
with ThreadPoolExecutor(len(bodies)) as pool:
    answers = list(pool.map(ask, bodies))
model = keras.saving.load_model("raydist_runs/calm/export/model.keras")
found = np.concatenate([answer["predictions"] for _, answer in answers])
user, film = keras.Input((1,), name="user"), keras.Input((2,), name="film")
two = keras.Model({"user": user, "film": film}, [keras.layers.Dense(1)(user), keras.layers.Dense(3)(film)])
two.export("two/export/saved_model", verbose=False)
serve.run(app({"run": "two"}), name="two", route_prefix="/two")
instances = [{"user": [number], "film": [number, 1.0]} for number in range(3)]
_, answer = ask({"instances": instances}, "two")
columns = {name: np.array([one[name] for one in instances], "float32") for name in ("user", "film")}
first, second = two.predict(columns, verbose=0)
told = {
    "two": answer["predictions"],
    "expected of two": [
        {"output_0": one.tolist(), "output_1": other.tolist()} for one, other in zip(first, second)
    ],
    "codes": [code for code, _ in answers],
    "difference": float(np.abs(found - model.predict(x, verbose=0)).max()),
    "wrong shape": ask({"instances": [[1.0, 2.0]]}),
    "nothing": ask({}),
}
serve.shutdown()
ray.shutdown()
print(json.dumps(told))
"""


def said_by(program: str, folder: Path, libraries: str) -> str:
    """Runs a program in a folder, with the libraries; returns its last line."""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), libraries])}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=folder, env=environ, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


def test_answers_are_the_outputs_of_the_model_and_wrong_requests_are_told(
    tmp_path: Path, libraries: str
) -> None:
    (tmp_path / "digits.py").write_text(DIGITS)
    assert said_by(TRAIN, tmp_path, libraries) == "SUCCEEDED"
    told: dict[str, Any] = json.loads(said_by(ASK, tmp_path, libraries))
    assert told["codes"] == 6 * [200]
    assert told["difference"] < 1e-6
    for answer, expected in zip(told["two"], told["expected of two"], strict=True):
        for name in ("output_0", "output_1"):
            assert answer[name] == pytest.approx(expected[name], abs=1e-6)
    code, answer = told["wrong shape"]
    assert (code, "has the shape (1, 2), and the model takes (None, 64)" in answer["error"]) == (400, True)
    assert told["nothing"] == [400, {"error": "the request is not understood: KeyError('instances')"}]
