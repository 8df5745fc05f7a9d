"""TensorFlow's PreemptionCheckpointHandler: who tells it to save, and whether it has ended the program."""

from __future__ import annotations

import contextlib
import functools
import traceback
from collections.abc import Callable, Iterator
from typing import Any

from tensorflow.python.distribute.failure_handling import failure_handling

from raydist.tf_private.attributes import changed


@contextlib.contextmanager
def told_to_save(is_told: Callable[[], bool], *, on_handler: Callable[[], None]) -> Iterator[None]:
    """Has handlers that are made in the block save and end the program once `is_told`, asked every second.

    A TerminationConfig takes such a function too, but only the program can pass one. Its own
    `termination_watcher_fn`, and the one for Google's cloud, are called as well. Without one, the handler
    leaves SIGTERM to the process, and ignores its grace period: the run moves once the state is saved.

    Args:
      on_handler: Called when a handler is made.
    """
    complete = failure_handling._complete_config_for_environment

    @functools.wraps(complete)
    def with_watcher(*args: Any, **kwargs: Any) -> Any:
        on_handler()
        config = complete(*args, **kwargs)
        watch = config.termination_watcher_fn
        config.termination_watcher_fn = is_told if watch is None else lambda: is_told() or watch()
        if watch is None:
            config.grace_period = 0
        return config

    with changed(failure_handling, _complete_config_for_environment=with_watcher):
        yield


def is_exit_of_handler(error: BaseException) -> bool:
    """Whether a handler ends the program, which asks for another start.

    With which code it does so depends on where it runs, and on its `TerminationConfig`.
    """
    frames = traceback.walk_tb(error.__traceback__)
    return isinstance(error, SystemExit) and any(
        frame.f_code.co_filename == failure_handling.__file__ for frame, _ in frames
    )
