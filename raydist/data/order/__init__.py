"""One global order of examples: NumPy alone."""
