"""The policies that compute prompts whole, and what they share (`base`)."""
