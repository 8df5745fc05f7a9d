"""Commands that run one job several times and compare the runs."""
