"""A state that takes too much of the host's memory is not kept there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.support.late import LateModule

kept_states = LateModule("raydist.training.checkpointing.kept_states")
variables = LateModule("raydist.training.checkpointing.variables")
tf = LateModule("tensorflow")


@pytest.mark.parametrize(("size", "is_kept"), [(85, True), (86, False)])
def test_state_that_does_not_fit_is_not_kept_and_a_note_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, is_kept: bool
) -> None:
    monkeypatch.setattr("raydist.training.checkpointing.kept_states.MOST_BYTES", 1 << 10)
    files, notes = [tmp_path / "0", tmp_path / "1"], list[str]()
    for file in files:
        file.touch()
    keeper = kept_states.StateKeeper([str(file) for file in files], note=notes.append)
    state = {"model": [tf.Variable(np.zeros(size, "float32"))]}  # three copies: 1020 or 1032 bytes
    for step in (1, 2, 3):  # the third one waits for the second one's write
        keeper.keep(state, dict, step=step, copies=None)
    assert [file.stat().st_size > 0 for file in files] == [is_kept, is_kept]
    assert keeper.is_given_up is not is_kept
    assert ["is the most), so a new attempt repeats" in note for note in notes] == [True] * (not is_kept)
