"""TensorFlow's start-up messages, which say nothing of the user's program, told from a log's other lines."""

from __future__ import annotations

import re

# Of TensorFlow's C++ code, before and after absl has been set up.
_PREFIX = (
    r"(?:{level}0000 00:00:\d+\.\d+ +\d+ [\w./]+:\d+\] |\d{{4}}-\d\d-\d\d [\d:.]+: {level} [\w./]+:\d+\] )"
)
_WARNING = _PREFIX.format(level="[WE]")
_NOISE = re.compile(
    "|".join(
        (
            _PREFIX.format(level="I"),
            r"WARNING: All log messages before absl::InitializeLog\(\) is called are written to STDERR",
            r"To enable the following instructions: .* rebuild TensorFlow",
            _WARNING + r"Unable to register cu\w+ factory",
            _WARNING + r"computation placer already registered",
            # What ends an epoch, and a generator of Python.
            _WARNING + r"Local rendezvous is aborting with status: OUT_OF_RANGE",
            _WARNING
            + r"Local rendezvous is aborting with status: FAILED_PRECONDITION: Input dataset was expected",
            _WARNING + r"Input of GeneratorDatasetOp\S* will not be optimized",
        )
    )
)
# Of a host without GPUs; where a task has GPUs, this says why TensorFlow does not see them.
_NO_GPUS = re.compile(
    _PREFIX.format(level="[IWE]")
    + r"(?:failed call to cuInit|(?:Could not find|Cannot dlopen).*(?:GPU|cuda))"
)
# A peer has failed, which is told by itself.
_ABORT = re.compile(_WARNING + r".*(?:[Aa]bort|coordination service)")
_CONTINUATION = re.compile(
    r"\t \[\[(?:\{\{(?:function_)?node |type\.googleapis)"
    r"|The error could be from a previous operation\. Restart your program to reset\."
    r"|Additional GRPC error information from remote target "
    r"|:[A-Z_]+:Error received from peer"
)


class NoiseFilter:
    """Tells the noise of one task's log from the rest, line by line.

    Args:
      has_gpus: Whether the task has GPUs.
      with_aborts: Whether what TensorFlow tells of a peer's failure is kept.

    Attributes:
      num_left_out: Lines that were noise so far.
    """

    def __init__(self, *, has_gpus: bool, with_aborts: bool = True) -> None:
        self._has_gpus = has_gpus
        self._with_aborts = with_aborts
        self.num_left_out = 0
        self._was_noise = False

    def keeps(self, line: str) -> bool:
        """Whether a line is to be shown; called with each line in turn."""
        continues_noise = self._was_noise and _CONTINUATION.match(line) is not None
        self._was_noise = continues_noise or not self.keeps_alone(line)
        self.num_left_out += self._was_noise
        return not self._was_noise

    def keeps_alone(self, line: str) -> bool:
        """Whether a line is to be shown, regardless of the lines before it."""
        if _NO_GPUS.match(line) is not None:
            return self._has_gpus
        return _NOISE.match(line) is None and (self._with_aborts or _ABORT.match(line) is None)
