"""The command line. It parses arguments, calls `raydist.api` and the rooms below it, and prints.

`commands` has the commands, `screen` what they print alike. Nothing here is needed to run a job from Python.
"""
