"""Independent runs in parallel processes."""
