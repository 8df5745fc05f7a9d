"""What commands print, and where to."""
