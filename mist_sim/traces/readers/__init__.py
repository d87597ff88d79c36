"""Readers of trace files, one a form, and what they share: opening, values, the form's signs."""
