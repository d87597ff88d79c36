"""Pictures of a run, drawn with Plotly: one file an idea, one call a picture."""
