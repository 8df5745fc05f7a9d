"""The tf.distribute strategy of a task, and what its workers exchange outside of training steps."""
