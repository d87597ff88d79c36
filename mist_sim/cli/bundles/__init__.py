"""Input and output of `mist afd`."""
