"""Everything that a run keeps on a local disk or in an object store: records, claims, checkpoints, logs.

Metrics have a room of their own. What a host keeps on its own disk is in `runtime.host`.
"""
