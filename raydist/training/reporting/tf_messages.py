"""Errors and messages of TensorFlow and Keras: the one line that counts, and what to do about it."""

from __future__ import annotations

import os
import re
from pathlib import Path

from raydist.spec.text import without_colours

_ADVICE = {
    "for loss reduction when losses are used with `tf.distribute.Strategy`": (
        "Make the loss with reduction='none' and divide the sum by the global batch size, as "
        "tf.nn.compute_average_loss(losses, global_batch_size=...) does: gradients are summed over replicas."
    ),
    "Shape mismatch in the collective instance": (
        "The workers reduce or gather tensors of different shapes, such as a loss per example of batches "
        "of different sizes: reduce them to scalars first, or give every worker batches of one size "
        "(drop_remainder=True); ctx.fit and ctx.train_steps cut global batches themselves."
    ),
    "Collective ops must be configured at program startup": (
        "Build MultiWorkerMirroredStrategy() before the first tensor, variable, dataset or model; before "
        "tf.config.list_logical_devices(); tf.config.list_physical_devices() may come first."
    ),
    "'ShardedVariable' object has no attribute 'handle'": (
        "Keras 3 has no sharded variables: use --keras legacy, or leave variable_partitioner out."
    ),
    "/variables/variables_temp; No such file or directory": (
        "Parameter servers write the variables of a SavedModel in working folders of their own: give an "
        "absolute path on storage that all hosts share, or save a .keras file."
    ),
    # TensorFlow has not brought it along since 2.21. raydist's extra `tensorflow` does not either, because
    # only programs that write summaries themselves need it.
    "TensorBoard is not installed, missing implementation for tf.summary": (
        "Install it on each host: `pip install 'raydist[tensorboard]'`; or leave out tf.summary and Keras's "
        "TensorBoard callback: raydist writes its metrics for TensorBoard without them."
    ),
}
# What TensorFlow tells of where a node was made: the whole stack, of which few frames are the user's.
_NODE_STACK = re.compile(
    r"(?:Graph execution error:\n\n)?Detected at node \S+ defined at \(most recent call last\):\n"
    r"((?:<stack traces unavailable>\n|  File .*\n\n?)+)"
)
_FRAME = re.compile(r'  File "(.*)", line \d+, in .*\n')
_OF_OTHERS = (f"{os.sep}site-packages{os.sep}", f"{Path(__file__).parents[2]}{os.sep}", "<frozen ")
_LABEL = re.compile(
    r"Received a label value of (-?\d+) which is outside the valid range of \[0, (\d+)\).*"
    r"(?:\n\t \[\[\{\{node .*)?"
)


def readable(text: str, *, with_frames: bool = True) -> str:
    """Returns a message or traceback without most of what TensorFlow tells of a node that failed.

    Args:
      with_frames: Whether the frames of the user's code in the node's stack stay.
    """

    def users(stack: re.Match[str]) -> str:
        frames = [one for one in _FRAME.finditer(stack[1]) if not any(name in one[1] for name in _OF_OTHERS)]
        return "".join(["in the graph that was made at\n", *(one[0] for one in frames)]) if frames else ""

    text = _NODE_STACK.sub(users if with_frames else "", text)
    return _LABEL.sub(_about_label, text)


def _about_label(said: re.Match[str]) -> str:
    value, num_classes = said[1], int(said[2])
    return (
        f"a label is {value}, but the model's output has {num_classes} classes, 0 to {num_classes - 1}; give "
        "the last layer a unit for each class, or number the labels from 0"
    )


def with_advice(message: str) -> str:
    """Returns an error's message, with a sentence of what to do where there is one."""
    found = [advice for text, advice in _ADVICE.items() if text in message]
    return "\n".join([message.rstrip(), *found]) if found else message


def advice_on_place(error: BaseException, *, working_dir: str) -> str | None:
    """Returns what to do about code or a file that is not where a task runs; None for other errors."""
    if isinstance(error, ModuleNotFoundError) and error.name:
        package = error.name.partition(".")[0]
        return (
            f"{package} is not installed where the task runs, and is not in the folder that travels with the "
            "job. Install it on each host, name it in --runtime-env, or give --working-dir the folder that "
            "has it."
        )
    name = error.filename if isinstance(error, FileNotFoundError) else None
    if not isinstance(name, str) or os.path.isabs(name) or "://" in name:
        return None
    return (
        f"{name} was looked for in {working_dir}, where the task runs with a copy of the job's folder. Put "
        "it beside the job, or give an absolute path that each host has, or a URI."
    )


_OF_AUTOGRAPH = "in user code:"
_OF_KERAS = "Exception encountered when calling"


def cause_of(error: BaseException) -> str:
    """Returns the error's type and the first line of what was raised in the user's code."""
    name = type(error).__name__
    told = _first_told([line for line in without_colours(str(error)).splitlines() if line.strip()])
    if not told:
        return name
    return told if told.startswith(f"{name}:") else f"{name}: {told}"


def _first_told(lines: list[str]) -> str:
    """Returns the first line that is neither a wrapper's nor of the frames that AutoGraph lists."""
    frame_indent = None
    for line in lines:
        indent = len(line) - len(line.lstrip())
        if line.lstrip().startswith('File "'):
            frame_indent = indent
        elif frame_indent is not None and indent > frame_indent:  # the source of a frame
            continue
        elif line.strip() != _OF_AUTOGRAPH and _OF_KERAS not in line:
            return line.strip()
        else:
            frame_indent = None
    return lines[0].strip() if lines else ""
