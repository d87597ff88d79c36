"""Work on texts before and after the model: its times, measured, and the client that does it."""
