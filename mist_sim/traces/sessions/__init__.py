"""Readers of traces with sessions: coding agents, services' calls, retrieval."""
