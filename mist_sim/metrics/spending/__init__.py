"""What a run spends: energy, dollars, and what both add to its results."""
