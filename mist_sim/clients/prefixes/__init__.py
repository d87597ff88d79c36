"""The blocks of a prefix cache, by their content; sequences are the matter of `kv_cache`."""
