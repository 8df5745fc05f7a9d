"""Below Storage: whole files, S3's limits, patience, and errors without credentials."""
