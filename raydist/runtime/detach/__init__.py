"""What outlives the driver: a run's controller as an actor, a Ray that stays, leftovers of dead ones."""
