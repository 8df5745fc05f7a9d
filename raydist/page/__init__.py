"""The page of a run: what storage keeps of it, gathered, and shown in a browser."""
