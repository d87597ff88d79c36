"""What an engine can be told, and which of it does not go together."""
