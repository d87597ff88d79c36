"""Output of `mist list`."""
