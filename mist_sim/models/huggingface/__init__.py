"""Reads the config.json of Hugging Face."""
