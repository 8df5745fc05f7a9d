"""The tasks of an attempt, started, heard, replaced and stopped together."""
