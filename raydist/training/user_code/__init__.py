"""Questions to code of the user's that run nothing of it: Python functions, models, and traced graphs."""
