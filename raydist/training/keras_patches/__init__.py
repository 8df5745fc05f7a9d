"""The replacements in both Kerases, each with its reason, and what raydist asks of a model of either."""
