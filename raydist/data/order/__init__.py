"""The global order of examples, computed with NumPy alone. It knows positions, not files."""
