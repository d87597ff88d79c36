"""Interpolation between measured times, for one step and for a run of steps."""
