"""Training under ParameterServerStrategy: the chief schedules closures, the workers run them."""
