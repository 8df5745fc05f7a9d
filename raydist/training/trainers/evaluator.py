"""EvaluatorTrainer: evaluates each new checkpoint beside the training, on the devices of its task."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from raydist.errors import UnsupportedError
from raydist.training.checkpointing.saved_state import SavedState
from raydist.training.input import resume, train_data
from raydist.training.keras_patches import adapters
from raydist.training.reporting.logs import by_element, numbers
from raydist.training.trainers import evaluation, fit_data
from raydist.training.trainers.task_run import TaskRun
from raydist.training.trainers.trainer import EvaluateRequest, FitRequest, LoopRequest, PredictRequest

POLL_S = 0.5


class EvaluatorTrainer:
    """What an evaluator makes of the calls by which the others train."""

    def __init__(self, run: TaskRun) -> None:
        self._run = run

    def fit(self, request: FitRequest) -> Any:
        """Evaluates the checkpoints of this `fit` until training is done; returns a Keras `History`.

        Reports `val_` values at the checkpoint's step, with `evaluator_lag_steps`, by how many steps the
        newest checkpoint was ahead when the evaluation was done, and `evaluator_lag_s`, the seconds since
        the evaluated one was found.
        """
        run, model = self._run, request.model
        data = fit_data.resolved(request, seed=run.data_seed).validation_data
        if data is None:
            raise UnsupportedError(
                "the evaluator has nothing to evaluate: give ctx.fit validation_data, or use --no-evaluator"
            )
        adapter = adapters.adapter_of(model)
        adapters.check(model, run.strategy)
        steps = evaluation.num_steps(data, request.validation_steps, names=evaluation.OF_VALIDATION)
        dataset = train_data.read(data, run.strategy, auto_shard=run.auto_shard, name="validation_data")
        adapter.build(model, resume.element_spec(dataset))  # or nothing could be restored
        history = adapter.library.callbacks.History()
        history.set_model(model)
        history.on_train_begin()
        number = run.num_fits
        run.num_fits += 1
        seen: SavedState | None = None
        while True:
            # Asked before the look at storage: what was committed by then is seen.
            is_last = run.commands.finish.is_set()
            state = run.checkpoints.next_to_evaluate(seen)
            if state is None and is_last and not history.history:
                state = run.checkpoints.newest_after(0)  # evaluated by the process before this one
            seen = state or seen
            if state is not None and state.fit == number:
                self._evaluate(model, dataset, state, history, num_steps=steps)
            elif is_last or (state is not None and state.fit > number):
                return history
            else:
                run.commands.finish.wait(POLL_S)

    def evaluate(self, request: EvaluateRequest) -> dict[str, Any]:
        return evaluation.evaluate(self._run, request)

    def predict(self, request: PredictRequest) -> Any:
        return evaluation.predict(self._run, request)

    def train_steps(self, request: LoopRequest) -> Mapping[str, float]:
        raise UnsupportedError("the evaluator evaluates what ctx.fit trains; use --no-evaluator")

    def _evaluate(
        self, model: Any, data: Any, state: SavedState, history: Any, *, num_steps: int | None
    ) -> None:
        run = self._run
        found_at_s = time.time()
        run.checkpoints.restore(state, {"model": model})
        # The data are read anew each time, so a generator or a shuffle begins at its beginning.
        logs = numbers(model.evaluate(data, steps=num_steps, verbose=0, return_dict=True))
        lag_steps = max(0, run.checkpoints.newest_step() - state.step)
        metrics = {f"val_{name}": value for name, value in logs.items()}
        lag = {"evaluator_lag_steps": float(lag_steps), "evaluator_lag_s": time.time() - found_at_s}
        run.checkpoints.evaluated(state, by_element(metrics))
        run.reporter.progress.evaluated(state.step, lag_steps=lag_steps)
        run.reporter.report({**by_element(metrics), **lag}, step=state.step, epoch=state.epoch)
        history.on_epoch_end(state.epoch - 1, metrics)
