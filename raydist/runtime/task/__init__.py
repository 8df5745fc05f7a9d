"""A task's process, and what it needs before it trains."""
