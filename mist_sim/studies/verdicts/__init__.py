"""Whether a scenario attains a target at a rate: one run, and when it is long enough."""
