"""KV entries that move: to host memory and back, from tiers, to other clients."""
