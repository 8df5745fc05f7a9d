"""What the controller has asked of this task, for the training thread to look at."""

from __future__ import annotations

import threading

from raydist.spec.status import Command


class Commands:
    """Commands that have come in. Taken by any thread.

    Attributes:
      save: Set while a checkpoint is asked for. `finish`: set once training is done, for an evaluator.
    """

    def __init__(self) -> None:
        self.save = threading.Event()
        self.finish = threading.Event()

    def take(self, command: Command) -> bool:
        """Notes a command; returns whether it is one for the train function."""
        match command:
            case Command.SAVE:
                self.save.set()
            case Command.FINISH:
                self.finish.set()
            case _:
                return False
        return True
