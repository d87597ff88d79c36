"""Words that every part shares: requests, batches, views, events. No behaviour of its own."""
