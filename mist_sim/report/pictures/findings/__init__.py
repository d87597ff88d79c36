"""Pictures of findings that are no run: searches, sweeps, planes, steps, traces."""
