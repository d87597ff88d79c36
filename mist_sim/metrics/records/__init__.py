"""The columns that a run is written to."""
