"""Wrappers around vLLM's commands: shells, launchers, containers, manifests, charts."""
