"""What a task reports while it trains: progress, notes, values, event files and profiles."""
