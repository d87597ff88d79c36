"""Experiments behind the boxed insights of MIST (section V) and its Fig. 8."""

import mist_sim as mist

SAMPLING = mist.Sampling(generation_config="vllm")
"""From the whole vocabulary, which takes no time of its own: the paper times no top-p."""
