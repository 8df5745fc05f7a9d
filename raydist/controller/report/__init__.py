"""What a run tells of itself: its events and its result."""
