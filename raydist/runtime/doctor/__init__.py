"""What `raydist doctor --address` finds on the hosts of a Ray."""
