"""States in memory that outlives the process that has written them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from raydist.storage.kept_state import KeptState, StateMemory, StateWriter, unpack

FILES = {"variables.npz": b"weights" * 1000, "state.json": b"{}"}


@pytest.fixture
def memory() -> Iterator[StateMemory]:
    memory = StateMemory()
    yield memory
    memory.close()


def newest(memory: StateMemory) -> KeptState | None:
    content = memory.newest()
    return None if content is None else unpack(content)


def test_newest_state_is_read_as_it_was_written(memory: StateMemory) -> None:
    writer = StateWriter(memory.paths)
    assert memory.newest() is None
    for step in (3, 4, 5):
        writer.write(step, {**FILES, "state.json": str(step).encode()}, {"metrics/part": b"rows"})
        found = newest(memory)
        assert found == KeptState(
            step=step, files={**FILES, "state.json": str(step).encode()}, waiting={"metrics/part": b"rows"}
        )


def test_views_of_larger_arrays_are_written(memory: StateMemory) -> None:
    StateWriter(memory.paths).write(1, {"variables.npz": memoryview(bytearray(b"abcdef"))[:3]}, {})  # type: ignore[dict-item]
    found = newest(memory)
    assert found.files == {"variables.npz": b"abc"}


@pytest.mark.parametrize("cut", [0, 20, 200])
def test_state_whose_writing_was_cut_off_gives_way_to_the_one_before(memory: StateMemory, cut: int) -> None:
    writer = StateWriter(memory.paths)
    writer.write(7, FILES, {})
    writer.write(8, FILES, {})
    with open(memory.paths[1], "r+b") as slot:
        slot.seek(cut)
        slot.write(b"x")
    found = newest(memory)
    assert found.step == 7


def test_state_outlives_the_process_that_has_written_it(memory: StateMemory) -> None:
    program = (
        "import os, sys; from raydist.storage.kept_state import StateWriter\n"
        "writer = StateWriter(sys.argv[1:]); step = 0\n"
        "while True:\n"
        "    step += 1; writer.write(step, {'a': b'x' * 100_000}, {}); os.write(1, b'.')\n"
    )
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-c", program, *memory.paths]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environ) as process:
        num_written = len(process.stdout.read(5))
        process.kill()
        num_written += len(process.stdout.read())
    found = newest(memory)
    assert found.step in (num_written, num_written + 1)
    assert found.files == {"a": b"x" * 100_000}
