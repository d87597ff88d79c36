"""What `mist list` prints."""
