"""The results of one run: a section a file, and `tables`, which puts them together."""
