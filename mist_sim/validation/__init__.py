"""Measured runs of real engines beside simulated ones, with their errors."""
