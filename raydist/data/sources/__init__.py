"""Where examples are read from."""
