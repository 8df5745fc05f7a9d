"""Answers HTTP requests with the exported model of a run, by Ray Serve, as TF Serving's REST API does.

pip install 'ray[serve]'
raydist submit jobs/checkpoint_and_export.py --name calm
serve run jobs.serving:app run=raydist_runs/calm num_replicas=2

The answer to a POST of `{"instances": [[0.0, 0.5, ...], ...]}` is `{"predictions": [[-1.2, 0.3, ...], ...]}`.
Each replica is an actor with the model in its memory. It answers requests that come within 5 ms by one call
of the model. Of a model with several inputs each instance is an object, as in `[{"user": 1, "film": 5}]`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from ray import serve
from starlette.requests import Request
from starlette.responses import JSONResponse


@serve.deployment
class Model:
    def __init__(self, folder: str) -> None:
        self._loaded = tf.saved_model.load(folder)  # kept, as the signature refers to its variables weakly
        self._call = self._loaded.signatures["serving_default"]
        self._inputs = self._call.structured_input_signature[1]

    async def __call__(self, request: Request) -> Any:
        try:
            instances = (await request.json())["instances"]
            batch = {name: self._column(name, instances) for name in self._inputs}
        except (ValueError, KeyError, TypeError) as error:
            return JSONResponse({"error": f"the request is not understood: {error!r}"}, status_code=400)
        return {"predictions": await self._predict(batch)}

    def _column(self, name: str, instances: list[Any]) -> np.ndarray:
        """Returns one input of all instances, `[n, …]`."""
        spec = self._inputs[name]
        column = np.asarray(
            [one[name] if isinstance(one, dict) else one for one in instances], spec.dtype.as_numpy_dtype
        )
        if not spec.shape.is_compatible_with(column.shape):
            raise ValueError(f"{name} has the shape {column.shape}, and the model takes {spec.shape}")
        return column

    @serve.batch(max_batch_size=64, batch_wait_timeout_s=0.005)
    async def _predict(self, requests: list[dict[str, np.ndarray]]) -> list[Any]:
        """Answers several requests, each with a batch of its own, by one call of the model."""
        whole = {name: tf.constant(np.concatenate([one[name] for one in requests])) for name in self._inputs}
        outputs = {name: value.numpy() for name, value in self._call(**whole).items()}
        ends = np.cumsum([len(next(iter(one.values()))) for one in requests])[:-1]
        parts = {name: np.split(value, ends) for name, value in outputs.items()}
        if len(parts) == 1:
            return [part.tolist() for part in next(iter(parts.values()))]
        answers = []
        for number in range(len(requests)):
            columns = [parts[name][number].tolist() for name in parts]
            answers.append([dict(zip(parts, row, strict=True)) for row in zip(*columns, strict=True)])
        return answers


def app(arguments: dict[str, str]) -> serve.Application:
    """Returns what `serve run` starts.

    Args:
      arguments: `run`, the folder of a run that all hosts see, and `num_replicas`, 1 by default.
    """
    folder = Path(arguments["run"], "export", "saved_model").absolute()
    if not folder.is_dir():
        raise ValueError(
            f"there is no exported model at {folder}; give run=FOLDER of a run that has succeeded"
        )
    num_replicas = int(arguments.get("num_replicas", "1"))
    return Model.options(num_replicas=num_replicas).bind(str(folder))
