"""The options of a job: how they are declared, written and read, and which place overrides which."""
