"""vLLM's side: runs under a Python that has vLLM."""
