"""What a replica computes: its part of a batch, losses, gradients and logs, and their all-reduce."""
