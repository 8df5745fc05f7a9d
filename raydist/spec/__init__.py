"""What a job is, as plain data, and the words in which people write it: options, params, roles, secrets.

`settings` has the options. Nothing here reads a file; `raydist.entry` does.
"""
