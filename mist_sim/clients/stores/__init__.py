"""Memory that keeps KV entries outside the blocks of a lane, and the one way in and out."""
