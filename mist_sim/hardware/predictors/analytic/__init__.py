"""Step times from FLOPs and bytes, without a measurement."""
