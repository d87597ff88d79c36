"""Words that all parts share (requests, visits, batches, views), and a run's records."""
