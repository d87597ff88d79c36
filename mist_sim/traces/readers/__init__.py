"""Readers of trace files, one per form, and shared code: opening, values, recognising forms."""
