"""From what names a job to a JobDefinition, and later to the function that a task calls.

It reads the user's files, and runs them only in a process of their own or in a task.
"""
