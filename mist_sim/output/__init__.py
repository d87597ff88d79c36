"""Results on disk: one writer at a time, complete or absent, and no data lost."""

from mist_sim.output.files import output_file, write_whole
from mist_sim.output.folders import is_free, output_folder

__all__ = ["is_free", "output_file", "output_folder", "write_whole"]
