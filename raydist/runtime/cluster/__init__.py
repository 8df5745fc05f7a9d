"""Ray itself: connecting to it, what its hosts have, and where tasks are placed. Tasks are in `group`."""
