"""Which process drives a run."""
