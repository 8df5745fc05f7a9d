"""Keras's logs as numbers."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

# How often a task records its own running values.
LOCAL_REPORT_INTERVAL_S = 0.5


def floats(logs: Any) -> dict[str, float]:
    """Returns the scalars of Keras's logs."""
    values = tf.nest.map_structure(
        lambda value: value.numpy() if hasattr(value, "numpy") else value, dict(logs or {})
    )
    return {name: float(value) for name, value in values.items() if getattr(value, "ndim", 0) == 0}
