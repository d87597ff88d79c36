"""Discrete-event simulation of multi-stage LLM serving."""
