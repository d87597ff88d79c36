"""Doubles of parts of a simulation, and watchers of them, for checks of plugins."""
