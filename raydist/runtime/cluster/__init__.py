"""Ray itself: connecting to it, what it has, what it can do."""
