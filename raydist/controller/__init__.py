"""Decides what a run does next: RunMachine, its events, causes of failures, budgets, and the loop around it.

It starts nothing itself. `task_group` is what it asks of `raydist.runtime`, which does the work.
"""
