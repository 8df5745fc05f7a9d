"""The environment variables of tasks, and files of them."""
