"""A command that is not Python of raydist's, run on a host and ended with all its children."""
