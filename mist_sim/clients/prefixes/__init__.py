"""Which blocks a prefix cache has, by their content: it knows no sequences, as `kv_cache` does."""
