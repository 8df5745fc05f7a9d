"""How commands print: tables, progress, run records, guide pages. It computes nothing about a run."""
