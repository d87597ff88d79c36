"""A cluster as a graph: its parts, reading and drawing it, and clients' places."""
