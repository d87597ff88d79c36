"""From the command lines of vLLM to a scenario."""
