"""run.json."""
