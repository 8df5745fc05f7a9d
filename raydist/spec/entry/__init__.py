"""From what a person names as the job to the function that a task calls."""
