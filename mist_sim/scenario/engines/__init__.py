"""Makes an LLM client from a model, GPUs and options; defaults that depend on the GPU."""
