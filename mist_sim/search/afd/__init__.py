"""Provisioning of bundles: how many attention workers an FFN worker feeds (AFD)."""
