"""How steps run: several in one call, with callbacks, and at which pace. One call of `fit`."""
