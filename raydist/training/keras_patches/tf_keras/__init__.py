"""What raydist replaces in tf_keras, listed in `patches`, and what it asks of a tf_keras model."""
