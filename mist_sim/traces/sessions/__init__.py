"""Readers of traces whose requests belong together: coding agents, passages that are retrieved."""
