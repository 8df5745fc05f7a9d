"""What raydist finds out about a model and its step before it trains, and the notes on a run about that."""
