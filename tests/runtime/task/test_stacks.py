from __future__ import annotations

import sysconfig
import threading
from traceback import FrameSummary

import pytest

from raydist.runtime.task.stacks import dump_stacks, place_of

PACKAGES = "/usr/lib/python3/site-packages"
THREADING = FrameSummary(f"{sysconfig.get_path('stdlib')}/threading.py", 331, "wait")
EXECUTE = FrameSummary(f"{PACKAGES}/tensorflow/python/eager/execute.py", 53, "quick_execute")
GENERATED = FrameSummary("/tmp/raydist-0/x/tmp/__autograph_generated_file5q9.py", 8, "tf__train_step")
FIT = FrameSummary(f"{PACKAGES}/keras/src/backend/tensorflow/trainer.py", 438, "fit")
SCRIPT_OPS = FrameSummary(f"{PACKAGES}/tensorflow/python/ops/script_ops.py", 250, "__call__")
SEND = FrameSummary(f"{PACKAGES}/wandb/sdk/lib/session.py", 3, "send")
WANDB = FrameSummary(f"{PACKAGES}/wandb/keras.py", 12, "on_epoch_end")
COPY = "/tmp/raydist-0/run-0-worker-1-56b0cf96-0/code"
TRAIN = FrameSummary(f"{COPY}/prog.py", 24, "train")
CALLBACK = FrameSummary(f"{COPY}/prog.py", 53, "on_epoch_end")
GENERATOR = FrameSummary(f"{COPY}/inner/data.py", 7, "read")
WAITS = [EXECUTE, FIT, TRAIN]


@pytest.mark.parametrize(
    ("main", "others", "where", "is_waiting"),
    [
        pytest.param([CALLBACK, FIT, TRAIN], [], "prog.py:53 (on_epoch_end)", False, id="callback"),
        pytest.param([THREADING, CALLBACK, FIT, TRAIN], [], "prog.py:53 (on_epoch_end)", False, id="library"),
        pytest.param([SEND, WANDB, FIT, TRAIN], [], "wandb/keras.py:12 (on_epoch_end)", False, id="package"),
        pytest.param([SEND, CALLBACK, FIT, TRAIN], [], "prog.py:53 (on_epoch_end)", False, id="download"),
        pytest.param(WAITS, [], "prog.py:24 (train)", True, id="collective"),
        pytest.param([EXECUTE, CALLBACK, FIT, TRAIN], [], "prog.py:53 (on_epoch_end)", True, id="own"),
        pytest.param([EXECUTE, GENERATED, FIT, TRAIN], [], "prog.py:24 (train)", True, id="autograph"),
        pytest.param(WAITS, [[GENERATOR, SCRIPT_OPS]], "inner/data.py:7 (read)", False, id="generator"),
        pytest.param(WAITS, [[THREADING, GENERATOR]], "prog.py:24 (train)", True, id="own-thread"),
        pytest.param([THREADING, EXECUTE], [], None, True, id="server"),
    ],
)
def test_place_is_that_of_the_users_code(
    main: list[FrameSummary], others: list[list[FrameSummary]], where: str | None, is_waiting: bool
) -> None:
    place = place_of(main, others)
    assert (place.where, place.is_waiting) == (where, is_waiting)
    assert (place.stack != "") is (where is not None)


def test_stack_of_a_place_has_no_calls_of_the_libraries() -> None:
    stack = place_of([EXECUTE, CALLBACK, FIT, TRAIN], []).stack
    assert [line.split(",")[0].strip() for line in stack.splitlines()] == [
        'File "prog.py"',
        'File "prog.py"',
        f'File "{EXECUTE.filename}"',
    ]


def test_dump_has_the_main_thread_first() -> None:
    texts: list[str] = []
    thread = threading.Thread(target=lambda: texts.append(dump_stacks()), name="asks")
    thread.start()
    thread.join(10)
    assert texts[0].startswith("Thread MainThread (most recent call first):\n  File ")
    assert "Thread asks" not in texts[0]
