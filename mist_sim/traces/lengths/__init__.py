"""Lengths that are drawn: distributions, mixtures of classes, and the sources that draw rows."""
