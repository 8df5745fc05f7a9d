"""Which tasks the others wait for, and why: decided from numbers, for the controller and the page alike."""
