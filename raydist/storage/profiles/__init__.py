"""What `raydist profile` and a task tell each other through storage."""
