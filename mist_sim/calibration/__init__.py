"""From measurements to step times: regressions of steps, and figures of GPUs and of machines."""
