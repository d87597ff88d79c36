"""Experiments behind the boxed insights of MIST (section V) and its Fig. 8."""
