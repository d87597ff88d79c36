"""From tables of measured kernels to the figures of a GPU's kernels."""
