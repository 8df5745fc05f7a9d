"""Watches over the process that drives a run, which Ray ends without a message when Ray itself dies.

Imports neither ray nor tensorflow, and nothing else of weight until there is something to do.
"""
