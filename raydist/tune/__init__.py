"""raydist runs as trials of Ray Tune. It needs `raydist[tune]`."""

from raydist.tune.trainable import (
    max_concurrent_trials as max_concurrent_trials,
    trainable as trainable,
)

__all__ = ["max_concurrent_trials", "trainable"]
