"""The words that all parts share: requests, visits, batches, views. No behaviour of their own."""
