"""A live server under a workload of ours: its requests are sent, timed, and kept for `validate`."""
