"""Where a figure of a GPU's entry comes from."""

from mist_sim.hardware import GpuSpec


def source_of(gpu: GpuSpec, figure: str) -> str:
    """Return the source of a figure such as "prefill.mfu", its table's, or an empty string."""
    table = figure.partition(".")[0]
    return gpu.sources.get(figure) or gpu.sources.get(table, "")
