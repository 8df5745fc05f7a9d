"""What is installed on this host, and whether raydist can use it."""
