"""Where a figure of a GPU's entry comes from."""

from mist_sim.hardware import GpuSpec


def source_of(gpu: GpuSpec, figure: str) -> str:
    """Return the source of a figure such as "prefill.mfu", or of a table that it is in; or ""."""
    while figure:
        if figure in gpu.sources:
            return gpu.sources[figure]
        figure = figure.rpartition(".")[0]
    return ""
