"""What a job is set with: the decorator, a config file, options, params, and which comes first."""
