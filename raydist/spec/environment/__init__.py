"""What tasks find in their environment: variables, and which of them are secret."""
