"""How steps run: several in one call, with callbacks, and how long they take. One call of `fit`."""
