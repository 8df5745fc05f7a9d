"""One task: its agent, which is a Ray actor, its process, and what the process needs before it trains.

Nothing here imports TensorFlow; what trains is `raydist.task`.
"""
