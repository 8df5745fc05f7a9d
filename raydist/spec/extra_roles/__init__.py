"""Roles with a command of their own, such as a feature server beside the training."""
