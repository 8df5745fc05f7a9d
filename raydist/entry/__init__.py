"""From what a user names to a JobSpec: reads job files, modules, scripts, notebooks and config files.

It runs the user's code only in a process of its own or in a task, where it finds the function to call.
"""
