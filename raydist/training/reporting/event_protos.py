"""TensorBoard's event files as bytes, made with TensorFlow alone: tasks need no TensorBoard."""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

# tensorboard/plugins/hparams/metadata.py and plugin_data.proto.
_PARAMS_PLUGIN = "hparams"
_START_TAG, _START_FIELD = "_hparams_/session_start_info", 3
_END_TAG, _END_FIELD = "_hparams_/session_end_info", 4
_SUCCESS = 1
_BUCKETS = 30  # as many as tf.summary.histogram has
_BYTES, _FIXED64, _VARINT = 2, 1, 0  # protobuf's wire types


def event_file(events: Sequence[bytes]) -> bytes:
    """Returns a whole event file with these events; files can be appended to each other."""
    version = tf.compat.v1.Event(file_version="brain.Event:2").SerializeToString()
    with tempfile.TemporaryDirectory(prefix="raydist-events-") as folder:
        path = Path(folder) / "events"
        with tf.io.TFRecordWriter(str(path)) as writer:
            for event in (version, *events):
                writer.write(event)
        return path.read_bytes()


def scalars(values: Mapping[str, float], *, step: int, wall_time: float) -> bytes:
    """Returns the event of a step's values by their tags."""
    summary = tf.compat.v1.Summary(
        value=[{"tag": tag, "simple_value": value} for tag, value in values.items()]
    )
    return tf.compat.v1.Event(step=step, wall_time=wall_time, summary=summary).SerializeToString()


def histogram(tag: str, values: np.ndarray, *, step: int, wall_time: float) -> bytes:
    """Returns the event with a histogram of values that are finite, as TensorBoard's plugin keeps it."""
    counts, edges = np.histogram(values, bins=_BUCKETS)
    buckets = np.stack([edges[:-1], edges[1:], counts.astype(np.float64)], axis=1)
    return _tensor(tag, tf.make_tensor_proto(buckets), plugin="histograms", step=step, wall_time=wall_time)


def layers(model_json: str, *, step: int, wall_time: float) -> bytes:
    """Returns the event with the layers of a Keras model."""
    tensor = tf.make_tensor_proto(model_json, dtype=tf.string)
    plugin = "graph_keras_model"
    return _tensor("keras", tensor, plugin=plugin, content=b"1", step=step, wall_time=wall_time)


def _tensor(
    tag: str, tensor: Any, *, plugin: str, step: int, wall_time: float, content: bytes = b""
) -> bytes:
    metadata = {"plugin_data": {"plugin_name": plugin, "content": content}}
    summary = tf.compat.v1.Summary(value=[{"tag": tag, "metadata": metadata, "tensor": tensor}])
    return tf.compat.v1.Event(step=step, wall_time=wall_time, summary=summary).SerializeToString()


def restart(*, step: int, wall_time: float) -> bytes:
    """Returns the event that makes TensorBoard drop what it has of `step` and later."""
    log = tf.compat.v1.SessionLog(status=tf.compat.v1.SessionLog.START)
    return tf.compat.v1.Event(step=step, wall_time=wall_time, session_log=log).SerializeToString()


def params_start(params: Mapping[str, bool | float | str], *, group: str, wall_time: float) -> bytes:
    """Returns the event by which the HParams plugin knows a run's params; runs of one `group` are trials."""
    entries = [
        _field(1, _field(1, name.encode()) + _field(2, _value(value))) for name, value in params.items()
    ]
    info = b"".join(entries) + _field(4, group.encode()) + _double(5, wall_time)
    return _params_event(_START_TAG, _field(_START_FIELD, info), wall_time)


def params_end(*, wall_time: float) -> bytes:
    """Returns the event by which the HParams plugin knows that a run succeeded."""
    info = bytes([1 << 3 | _VARINT, _SUCCESS]) + _double(2, wall_time)
    return _params_event(_END_TAG, _field(_END_FIELD, info), wall_time)


def _params_event(tag: str, content: bytes, wall_time: float) -> bytes:
    metadata = {"plugin_data": {"plugin_name": _PARAMS_PLUGIN, "content": content}}
    nothing = tf.make_tensor_proto(0, dtype=tf.float32, shape=(0,))
    summary = tf.compat.v1.Summary(value=[{"tag": tag, "metadata": metadata, "tensor": nothing}])
    return tf.compat.v1.Event(wall_time=wall_time, summary=summary).SerializeToString()


def _value(value: bool | float | str) -> bytes:
    """Returns a google.protobuf.Value."""
    match value:
        case bool():
            return bytes([4 << 3 | _VARINT, value])
        case str():
            return _field(3, value.encode())
        case _:
            return _double(2, value)


def _field(number: int, content: bytes) -> bytes:
    return bytes([number << 3 | _BYTES]) + _varint(len(content)) + content


def _double(number: int, value: float) -> bytes:
    return bytes([number << 3 | _FIXED64]) + struct.pack("<d", value)


def _varint(value: int) -> bytes:
    low, high = value & 0x7F, value >> 7
    return bytes([low | 0x80]) + _varint(high) if high else bytes([low])
