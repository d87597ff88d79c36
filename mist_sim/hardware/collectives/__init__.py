"""Collectives: what they cost, in which ways, and over which nodes the ranks lie."""
