"""Tests in a separate process whether the patches work with a Keras that raydist does not know."""
