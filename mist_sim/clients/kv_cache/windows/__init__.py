"""KV memory of models with sliding windows: pages, and blocks that windows leave in the cache."""
