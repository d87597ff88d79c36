"""Pictures of a run, drawn with Matplotlib: one file an idea, one call a picture."""
