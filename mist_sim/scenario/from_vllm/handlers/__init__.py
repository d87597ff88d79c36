"""Handlers of flags that need more than a key: models, drafts, graphs, transfers, several nodes."""
