"""What clients did: their steps, what prompts cost the answers beside them, when they were up."""
