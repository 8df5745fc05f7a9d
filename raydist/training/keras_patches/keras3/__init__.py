"""What raydist replaces in Keras 3, listed in `patches`, and what it asks of a Keras 3 model."""
