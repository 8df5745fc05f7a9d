"""The tasks of an attempt: what they report, which are replaced, whether they go on and have succeeded."""
