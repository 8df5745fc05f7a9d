"""What tasks ask of their hosts beside CPUs and GPUs, and which host has it."""
