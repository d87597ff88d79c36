"""From a model, GPUs and options to an LLM client, and the defaults that depend on the GPU."""
