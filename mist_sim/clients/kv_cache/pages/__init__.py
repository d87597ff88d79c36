"""KV memory of layers that keep different things: pages of full, window and state groups."""
