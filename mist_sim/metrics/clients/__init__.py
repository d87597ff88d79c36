"""Clients in a run: steps, interference of prompts with answers, times in which they were up."""
