"""Step times by running layers of the model in PyTorch, on the device there is.

Some layers are timed and their time is multiplied up to all of the model, which saves memory and
time; embedding, head and sampling are timed once. Only one rank of a tensor-parallel group runs,
and collectives are computed (`Cluster.all_reduce_time`), not run.

On CUDA steps are captured as graphs and replayed, and events on the device tell the time.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

import torch

from mist_sim.core.batch import StepBatch
from mist_sim.errors import ScenarioError, brief
from mist_sim.hardware.cluster import Cluster
from mist_sim.hardware.predictors.measured.timing import Call, Timing, seconds_of
from mist_sim.models.spec import ModelSpec
from mist_sim_torch.cuda_timing import (
    WARM_SECONDS,
    captured,
    current,
    seconds_on_device,
)
from mist_sim_torch.launches import launch_seconds
from mist_sim_torch.layers import Layers
from mist_sim_torch.pointwise import Pointwise, fuses

_METHOD = "execution 2"  # raised when the timed code, or the way of timing, changes


@dataclass(kw_only=True)
class TorchSource:
    """Times steps of a dense model; a `StepSource`.

    device: "cpu", "cuda", "cuda:1", ...; "auto" takes CUDA where there is one.
    num_timed_layers: layers that run; all of the model if it has fewer.
    Raises ScenarioError for a model or a device that cannot be run.
    """

    model: ModelSpec
    cluster: Cluster
    device: str = "auto"
    num_timed_layers: int = 2
    timing: Timing = field(default_factory=Timing)
    seed: int = 0

    def __post_init__(self) -> None:
        check_runs(self.model, self.cluster)
        if self.num_timed_layers < 1:
            raise ValueError(f"num_timed_layers must be >= 1, got {self.num_timed_layers}")
        self.torch_device = _device(self.device)
        self._num_timed = min(self.num_timed_layers, self.model.num_layers)
        self._fuses = fuses(self.torch_device)
        self._layers: Layers | None = None

    @property
    def device_name(self) -> str:
        """The device's own name."""
        if self.torch_device.type == "cuda":
            return str(torch.cuda.get_device_name(self.torch_device))
        return f"{platform.processor() or platform.machine()}, {torch.get_num_threads()} threads"

    @property
    def identity(self) -> Mapping[str, object]:
        """Everything but the batch that the times depend on."""
        model = asdict(self.model)
        for name in ("name", "source"):
            model.pop(name)
        return {
            "source": _METHOD,
            "torch": torch.__version__,
            "device": self.device_name,
            "model": {name: repr(value) for name, value in model.items()},
            "tensor_parallel_size": self.cluster.tensor_parallel_size,
            "interconnect": repr(self.cluster.gpu.interconnect),
            "num_timed_layers": self._num_timed,
            "fused": self._fuses,
            "timing": asdict(self.timing),
            "seed": self.seed,
        }

    @property
    def notes(self) -> Mapping[str, object]:
        """Description of these measurements in their table."""
        return {
            "model": self.model.name,
            "gpu": self.cluster.gpu.name,
            "tensor_parallel_size": self.cluster.tensor_parallel_size,
            "device": self.device_name,
            "torch": torch.__version__,
            "layers": f"{self._num_timed} timed, multiplied up to {self.model.num_layers}",
            "pointwise": "fused by torch.compile" if self._fuses else "a kernel an operation",
            "repeats": f"{self.timing.repeats}, median",
        }

    def dispatch_times(self) -> dict[str, float]:
        """Return seconds of host time to launch each module of a layer."""
        ranks = self.cluster.tensor_parallel_size
        return launch_seconds(self.model, ranks, self.torch_device, self.seed)

    def seconds(self, batches: Sequence[StepBatch]) -> list[float]:
        """Return the duration of each batch in seconds."""
        with torch.inference_mode(), current(self.torch_device):
            return [self._step(batch) for batch in batches]

    def _step(self, batch: StepBatch) -> float:
        num_tokens = batch.num_prefill_tokens + batch.num_decodes
        num_samples = len(batch.chunks) + batch.num_decodes
        try:
            layers = self.layers
            parts = layers.step(batch), layers.ends(num_tokens, num_samples)
            stack, ends = (self.timed(part) for part in parts)
        except torch.OutOfMemoryError:
            raise ScenarioError(
                f"{batch} does not fit the memory of {self.device_name} with {self._num_timed} "
                "layers; time fewer layers or smaller steps"
            ) from None
        width = num_tokens * self.model.hidden_size * self.model.dtype_bytes
        summed = 2 * self.model.num_layers * self.cluster.all_reduce_time(width)
        return stack * (self.model.num_layers / self._num_timed) + ends + summed

    @property
    def layers(self) -> Layers:
        """The layers that run, made when they are first needed."""
        if self._layers is None:
            ranks = self.cluster.tensor_parallel_size
            self._layers = Layers(
                self.model,
                ranks,
                self._num_timed,
                self.torch_device,
                self.seed,
                Pointwise.fused() if self._fuses else Pointwise(),
            )
        return self._layers

    def timed(self, call: Call) -> float:
        """Return the seconds of a call, by the clock of the device."""
        if self.torch_device.type != "cuda":
            return seconds_of(call, self.timing)
        timing = replace(self.timing, warm_seconds=WARM_SECONDS)
        return seconds_of(captured(call), timing, seconds_on_device)


def check_runs(model: ModelSpec, cluster: Cluster) -> None:
    """Raise ScenarioError for models and groups that these layers do not cover."""
    for what, there in (
        ("experts", model.moe),
        ("latent attention", model.mla),
        ("sliding windows", model.sliding_window),
        ("layers that differ", model.layers),
        ("weights that are not in 16 bits", model.quantization),
        ("a KV cache that is not in 16 bits", model.kv_entry_bytes != 2),
    ):
        if there:
            raise ScenarioError(f"execution runs no models with {what}, as {model.name} has")
    cluster.check_split(model)


def _device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ScenarioError(f"device: no device {brief(name)}: {error!s:.80}") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ScenarioError(f"device: {name} needs an NVIDIA GPU and a CUDA build of torch")
    if device.type not in ("cuda", "cpu"):
        raise ScenarioError(f"device must be cpu, cuda or auto, got {brief(name)}")
    return device
