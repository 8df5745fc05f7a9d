"""Why an attempt failed, what that costs, and whether another one follows."""
