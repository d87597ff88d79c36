"""Layouts of a model: how many devices slice a layer, follow one another, and hold copies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from mist_sim.errors import ScenarioError
from mist_sim.models.spec import ModelSpec


class Layout(NamedTuple):
    """How a model lies on equal devices: c_p or c_d of Seesaw.

    tensor: devices that share every layer. pipeline: such groups, each with some of the layers.
    data: copies of all that.
    """

    tensor: int = 1
    pipeline: int = 1
    data: int = 1

    @property
    def num_devices(self) -> int:
        """Devices of all copies."""
        return self.tensor * self.pipeline * self.data

    @property
    def label(self) -> str:
        """As the paper writes it: "TP4PP2"; "TP1" for a single device."""
        sizes = (("DP", self.data), ("TP", self.tensor), ("PP", self.pipeline))
        return "".join(f"{name}{size}" for name, size in sizes if size > 1) or "TP1"


def layouts_of(
    model: ModelSpec, num_devices: int, data_parallel_sizes: Sequence[int] | None = None
) -> Iterator[Layout]:
    """Yield the layouts of a model on so many devices, whether or not its weights fit.

    Tensor sizes must divide the model by vLLM's rules; a pipeline has at most as many ranks as
    layers.
    data_parallel_sizes: allowed sizes; None: all.
    """
    for data in dict.fromkeys(data_parallel_sizes or range(1, num_devices + 1)):
        if num_devices % data:
            continue
        each = num_devices // data
        for tensor in range(each, 0, -1):
            pipeline = each // tensor
            if tensor * pipeline == each and pipeline <= model.num_layers and splits(model, tensor):
                yield Layout(tensor, pipeline, data)


def splits(model: ModelSpec, tensor_parallel_size: int) -> bool:
    """Tell whether a layer of the model can be divided over so many devices."""
    try:
        model.check_tensor_parallel(tensor_parallel_size)
    except ScenarioError:
        return False
    return True
