"""Energy and dollars of a run, and their columns in its results."""
