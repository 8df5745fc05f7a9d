from __future__ import annotations

import pytest

from raydist.training.reporting.tf_messages import cause_of

# As TensorFlow 2.21, Keras 3.15 and tf_keras 2.21 write them.
AUTOGRAPH = """in user code:

    File "/code/job.py", line 19, in serve  *
        return inner(x)
    File "/code/job.py", line 6, in inner  *
        raise NotImplementedError("no lookups\\nsecond line")

    NotImplementedError: no lookups
    second line
"""
KERAS_3 = """in user code:

    File "/code/job.py", line 19, in serve  *
        return m(x)
    File "/code/job.py", line 6, in inner

    NotImplementedError: Exception encountered when calling M.call().
    \n    \x1b[1mno lookups
    second line\x1b[0m
    \n    Arguments received by M.call():
      • x=tf.Tensor(shape=(2, 3), dtype=float32)
"""
TF_KERAS = """in user code:

    File "/code/job.py", line 19, in serve  *
        return m(x)

    NotImplementedError: Exception encountered when calling layer 'm2' (type M2).
    \n    in user code:
    \n        File "/code/job.py", line 12, in call  *
            return inner(x)
    \n        NotImplementedError: no lookups
        second line
    \n    \n    Call arguments received by layer 'm2' (type M2):
      • x=tf.Tensor(shape=(2, 3), dtype=float32)
"""


@pytest.mark.exhaustive("tf_keras", covered_by="the same with Keras 3")
@pytest.mark.parametrize(
    "message",
    [
        pytest.param(AUTOGRAPH, id="autograph"),
        pytest.param(KERAS_3, id="keras-3"),
        pytest.param(TF_KERAS, id="tf_keras"),
        pytest.param("no lookups\nsecond line", id="plain"),
        pytest.param("Exception encountered when calling M.call().\n\n\x1b[1mno lookups\x1b[0m", id="eager"),
    ],
)
def test_cause_is_found_in_what_is_written_around_it(message: str) -> None:
    assert cause_of(NotImplementedError(message)) == "NotImplementedError: no lookups"


@pytest.mark.parametrize(
    ("message", "told"),
    [
        pytest.param("", "ValueError", id="empty"),
        pytest.param("in user code:", "ValueError: in user code:", id="wrapper-alone"),
    ],
)
def test_error_without_a_cause_is_named(message: str, told: str) -> None:
    assert cause_of(ValueError(message)) == told
