"""Step times of mist-sim from kernels that NVIDIA measured: `predictor: {type: silicon}`."""

from mist_sim_silicon.predictor import Silicon, SiliconPredictor

__all__ = ["Silicon", "SiliconPredictor"]
