"""The tasks of an attempt: what they tell, which are replaced, whether they go on and have succeeded."""
