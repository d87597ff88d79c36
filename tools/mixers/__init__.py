"""From tables of measured states and sparse attention to the figures of their kernels."""
