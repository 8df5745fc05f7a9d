"""A run's controller as an actor of its own in Ray."""
