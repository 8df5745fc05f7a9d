"""The commands: parse, call api, print. A module has one `command`, or several of one subject by their names.

Commands that run one job several times are in `studies`. What is printed alike is in `cli.screen`.
"""
