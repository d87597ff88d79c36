"""Retrieval-augmented generation: clients that find passages for prompts, batch by batch."""
