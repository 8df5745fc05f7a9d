"""The tasks of an attempt, started, watched, replaced and stopped together. `task` has a single one."""
