"""From measured steps to regressions of step times."""
