"""Where a run's controller lives: in this process, in an actor, or elsewhere and seen from here."""
