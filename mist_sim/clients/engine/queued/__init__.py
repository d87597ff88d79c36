"""Pipelines of vLLM v1: one scheduler, and as many batches in flight as there are ranks."""
