"""Kinds of measurements of `mist calibrate` that have a form of their own."""
