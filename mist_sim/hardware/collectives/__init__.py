"""Collectives: their cost, algorithms, and the nodes of the ranks."""
