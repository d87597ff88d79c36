"""The policies that compute prompts whole, and their shared code (`base`)."""
