"""Rules about several clients of one run together."""
