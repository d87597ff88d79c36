"""Accelerators, their kernels and hosts, and memory below; from the catalog or a spec file."""
