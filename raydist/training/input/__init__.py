"""Training data for `tf.distribute`: each worker's part, and where a resumed run continues."""
