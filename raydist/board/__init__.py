"""TensorBoard over the runs of a storage."""
