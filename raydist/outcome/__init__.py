"""What becomes of a run: states of it and of its tasks, its result, and how they are kept in run.json."""
