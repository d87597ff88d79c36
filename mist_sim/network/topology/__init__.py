"""A cluster as a graph: what it is made of, how it is read and drawn, who has which place."""
