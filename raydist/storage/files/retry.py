"""Retry: what storage fails at for a moment is tried again for a while, everything else never."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import pyarrow as pa

from raydist.errors import add_note
from raydist.storage.files.failures import is_transient

logger = logging.getLogger(__name__)

# No try of a call begins later than this after the first failure; raydist/guide/storage.md says it too.
PATIENCE_S = 60.0
# For a person who waits: a mistyped endpoint should not take a minute to be told.
SHORT_PATIENCE_S = 10.0
_FIRST_PAUSE_S = 0.5
_MAX_PAUSE_S = 8.0
# Of its own: the global generator is the user's, who seeds it.
_random = random.Random()

Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True)
class Retry:
    """How a call goes on after errors that may pass.

    Attributes:
      patience_s: No try begins later than this after the first failure; 0 tries once.
      jitter: Returns a number from 0 to 1, by which hosts that failed together come back apart.
    """

    patience_s: float
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], object] = time.sleep
    jitter: Callable[[], float] = _random.random

    def call(self, do: Callable[[], Result]) -> Result:
        """Returns what `do` returns, which may be called several times; raises its last error."""
        failed_s, longest_pause_s = None, _FIRST_PAUSE_S
        while True:
            try:
                return do()
            except (OSError, pa.ArrowException) as error:
                if not is_transient(error):
                    raise
                pause_s = longest_pause_s * (1 + self.jitter()) / 2
                failed_s = self.clock() if failed_s is None else failed_s
                tried_s = self.clock() - failed_s
                if tried_s + pause_s > self.patience_s:
                    if tried_s:
                        add_note(error, f"and so for {tried_s:.0f} s")
                    raise
                logger.info("storage failed, next try in %.1f s: %s", pause_s, error)
            self.sleep(pause_s)
            longest_pause_s = min(2 * longest_pause_s, _MAX_PAUSE_S)
