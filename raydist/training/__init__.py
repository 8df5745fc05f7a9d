"""What runs inside a task with TensorFlow. It does not import Ray; the Ray side does not import it."""
