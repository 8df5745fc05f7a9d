"""States of callbacks as JSON and arrays: pure, with padding examples for Keras's own."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from raydist.errors import UnsupportedError
from raydist.training.checkpointing import callback_state


class EarlyStopping:
    __module__ = "keras.src.callbacks.early_stopping"

    def __init__(self) -> None:
        self.wait, self.best, self.best_epoch, self.stopped_epoch = 0, None, 0, 0
        self.best_weights: Any = None


class UsersEarlyStopping(EarlyStopping):
    __module__ = "job"


class Namesake:
    wait = 3


Namesake.__name__ = "EarlyStopping"  # of the user's own, with another meaning


class Counting:
    def __init__(self) -> None:
        self.state: Any = 0

    def get_state(self) -> Any:
        return self.state

    def set_state(self, state: Any) -> None:
        self.state = state


class Stateless:
    pass


def through_json(callbacks: list[Any]) -> Any:
    packed, arrays = callback_state.pack(callback_state.states_of(callbacks))
    return callback_state.unpack(json.loads(json.dumps(packed)), arrays)


def test_early_stopping_goes_on_waiting_with_its_best_weights() -> None:
    before, after = UsersEarlyStopping(), UsersEarlyStopping()
    before.wait, before.best, before.best_epoch = 1, np.float32(0.5), 3
    before.best_weights = [np.ones((2, 3)), np.zeros(1)]
    states = through_json([before])
    before.best_weights[0][:] = 7  # what was saved is a copy
    assert callback_state.restore([after], states) == []
    assert (after.wait, after.best, after.best_epoch) == (1, 0.5, 3)
    np.testing.assert_array_equal(after.best_weights[0], np.ones((2, 3)))


def test_users_state_comes_back_to_its_own_instance() -> None:
    first, second = Counting(), Counting()
    first.state = {"losses": (1.0, float("inf")), "note": None, "seen": np.int64(3)}
    second.state = [np.arange(3)]
    states = through_json([Stateless(), first, second])
    restored = [Counting(), Counting()]
    assert callback_state.restore(restored, states) == []
    assert restored[0].state == {"losses": [1.0, float("inf")], "note": None, "seen": 3}
    np.testing.assert_array_equal(restored[1].state[0], np.arange(3))


def test_changed_list_of_callbacks_is_told() -> None:
    states = through_json([Counting(), EarlyStopping()])
    notes = callback_state.restore([Stateless(), EarlyStopping(), EarlyStopping()], states)
    assert notes == [
        "the checkpoint has a state of callback Counting/0, which is not in the list any more",
        "callback EarlyStopping/1 starts over: the checkpoint has no state of it",
    ]


def test_class_of_the_users_own_with_a_name_of_keras_is_left_alone() -> None:
    assert callback_state.states_of([Namesake()]) == {}


@pytest.mark.parametrize("value", [object(), {1: 2}, np.array(["a"]), lambda: None])
def test_what_is_no_json_is_named(value: Any) -> None:
    callback = Counting()
    callback.state = {"inner": [value]}
    with pytest.raises(UnsupportedError, match="the state of callback Counting/0 holds"):
        callback_state.pack(callback_state.states_of([callback]))
