"""The events of a run, and its result."""
