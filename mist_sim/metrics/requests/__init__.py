"""Figures of requests: parts of their latency, rates, figures by model."""
