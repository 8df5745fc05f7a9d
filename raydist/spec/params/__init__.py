"""Params of a job as a record of a run keeps them."""
