"""KV memory of models with sliding windows: pages, and what windows leave in the cache."""
