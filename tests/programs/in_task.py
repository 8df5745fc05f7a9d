"""Runs programs one after another in a task. What each returns, or raises, is stored at once."""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import numpy as np

from tests.programs.outcome import Outcome
from tests.support.inside import progress_of


def run(
    ctx: Any,
    *,
    names: list[str],
    folder: str,
    limit_s: float,
    kill_after: int | None = None,
    find: str = "tests.programs.in_task:train_function",
    libraries: str | None = None,
) -> dict[str, Any]:
    """Runs a program for each name; without other arguments it is `tests.programs.<name>:train`.

    The first exception ends the task: what it leaves behind, such as a peer inside of a collective, is
    not for the programs after it. One that takes longer than `limit_s` ends the task with its stacks.

    Args:
      folder: Gets the files of `store`, in a folder of the task's name.
      kill_after: Kills the worker with the highest index after that many steps, at a committed checkpoint.
      find: `module:function` that returns the train function of a name.
      libraries: A folder of more packages that can be imported.
    """
    import tensorflow as tf

    if libraries is not None:
        sys.path.append(libraries)
    place = Path(folder, str(ctx.task).replace("/", "-"))
    place.mkdir(parents=True, exist_ok=True)
    module, _, function = find.partition(":")
    function_of = getattr(importlib.import_module(module), function)
    callbacks = [] if kill_after is None else [_killer(tf.keras, ctx, kill_after)]
    for name in names:
        train = function_of(name)
        if getattr(train, "is_seeded", True):
            tf.keras.utils.set_random_seed(28)  # or the order of a shuffle depends on the program before
        notes: list[str] = []
        _record_notes(progress_of(ctx), notes)
        faulthandler.dump_traceback_later(limit_s, exit=True)
        began_s = time.process_time()
        try:
            done = train(ctx, callbacks=callbacks)
        except BaseException:
            Path(place, f"{name}.error").write_text(traceback.format_exc())
            raise
        finally:
            faulthandler.cancel_dump_traceback_later()
            tf.keras.mixed_precision.set_global_policy("float32")
        _store(place, name, done, notes=notes, seconds=time.process_time() - began_s, ctx=ctx)
    return {}


def train_function(name: str) -> Any:
    """Returns the train function of a module in tests/programs."""
    return importlib.import_module(f"tests.programs.{name}").train


def store_outcome(place: Path, name: str, done: Outcome) -> None:
    """Stores it where `in_turn.read_outcome` finds it."""
    arrays = {**_prefixed("variables", done.variables), **_prefixed("history", done.history)}
    np.savez(place / f"{name}.npz", **arrays)


def _store(place: Path, name: str, done: Outcome, *, notes: list[str], seconds: float, ctx: Any) -> None:
    store_outcome(place, name, done)
    status = progress_of(ctx).status()
    values = {"notes": notes, "seconds": seconds, "step": status.step, "restored_step": status.restored_step}
    Path(place, f"{name}.json").write_text(json.dumps(values))


def _prefixed(prefix: str, arrays: Any) -> dict[str, np.ndarray]:
    return {f"{prefix}/{name}": array for name, array in arrays.items()}


def _record_notes(progress: Any, notes: list[str]) -> None:
    """Appends each note of a task's progress to `notes`, also one that an earlier program had."""
    note = type(progress).note

    def record(sentence: str) -> None:
        if sentence not in notes:
            notes.append(sentence)
        note(progress, sentence)

    progress.note = record


def _killer(keras: Any, ctx: Any, num_steps: int) -> Any:
    """Returns a callback that ends the process as a lost host would, once a checkpoint is committed."""

    class Killer(keras.callbacks.Callback):
        num_steps = 0

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.num_steps += 1
            if self.num_steps == num_steps and ctx.task.index == ctx.num_workers - 1:
                while not list(Path(ctx.storage).glob("checkpoints/*/_COMMITTED")):
                    time.sleep(0.05)
                os.kill(os.getpid(), signal.SIGKILL)

    return Killer()
