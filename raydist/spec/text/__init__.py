"""Text that users, their libraries and other hosts wrote, as it is shown."""
