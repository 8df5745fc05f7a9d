"""What has been asked of this task, for its threads to look at."""

from __future__ import annotations

import threading

from raydist.spec.status import Command


class Commands:
    """Commands that have come in. Taken by any thread.

    Attributes:
      save: Set while a checkpoint is asked for. `finish`: set once training is done, for an evaluator;
        for the chief once the evaluator was given up.
      profile: Set while there may be a request for a profile on storage.
    """

    def __init__(self) -> None:
        self.save = threading.Event()
        self.finish = threading.Event()
        self.profile = threading.Event()

    def take(self, command: Command) -> bool:
        """Notes a command; returns whether it is one for the train function."""
        match command:
            case Command.SAVE:
                self.save.set()
            case Command.PROFILE:
                self.profile.set()
            case Command.FINISH:
                self.finish.set()
            case _:
                return False
        return True
