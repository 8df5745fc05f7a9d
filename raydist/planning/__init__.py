"""From a job and what the hosts have to the plan of an attempt. Pure functions: nothing is started here."""
