"""What a host knows of itself, and what is left on it: no Ray."""
