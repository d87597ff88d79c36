"""Step times from other tools."""
