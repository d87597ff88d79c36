"""Damaged input of every kind, each piece made from a number.

`python -m tests.damage --help` runs any number of cases; `tests/property/test_damage.py` runs a few
in every run of the tests.
"""
