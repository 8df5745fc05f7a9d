"""The console script `raydist`."""

from __future__ import annotations

import signal
from typing import NoReturn


def start() -> NoReturn:
    """Runs the command line. Ctrl-C during its imports has to wait until `main.run` can report it."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    from raydist.cli import main

    main.main()
