"""What a checkpoint contains, when it is saved, and how it is restored. `raydist.storage` has its files."""
