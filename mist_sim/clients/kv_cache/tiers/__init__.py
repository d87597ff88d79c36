"""Memory below the GPU that KV blocks are kept in and loaded from."""
