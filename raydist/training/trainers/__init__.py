"""How a task trains: Keras's `fit`, a loop of steps, an evaluator. `parameter_server` has its own."""
