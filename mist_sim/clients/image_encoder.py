"""A client that encodes images on GPUs of its own: encode, prefill and decode apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace

from mist_sim.checks import NotNegative, Positive, check_fields
from mist_sim.clients.rag import BatchedClient
from mist_sim.clients.registry import CLIENTS
from mist_sim.clients.step_track import StepTrack
from mist_sim.clients.traits import ClientTraits, TimesOrigin
from mist_sim.core.batch import StepBatch
from mist_sim.core.recorder import Recorder
from mist_sim.core.request import Image
from mist_sim.core.visit import Visit
from mist_sim.environment import Environment
from mist_sim.errors import ScenarioError
from mist_sim.hardware.cluster import Cluster
from mist_sim.hardware.devices import load_gpu
from mist_sim.hardware.machine import Machine
from mist_sim.hardware.predictors.tower_times import TowerTimes, tower_bytes
from mist_sim.models import load_model
from mist_sim.stages import EncodeImages
from mist_sim.units import BytesPerSecond, DollarsPerHour, Seconds

_WIDTH = 2  # bytes of a value that is sent on


@CLIENTS.register("image_encoder")
@dataclass(eq=False)
class ImageEncoderClient(BatchedClient):
    """A model's vision tower on GPUs of its own (vLLM: an instance with `--mm-encoder-only`).

    It encodes the images of waiting prompts together, one batch at a time, and sends their
    embeddings to the client that computes the prompt.

    model: whose vision tower it runs: a catalog name, a Hugging Face id or the path of a
        config.json.
    gpu: a name of the catalog, or the path of a TOML file.
    tensor_parallel_size: GPUs that share each layer of the tower.
    max_batch_size: most prompts per batch. max_wait: how long the oldest waits for others while the
        client is free.
    bandwidth: at which what a batch became is sent on, before the next one begins; None: at once.
    gpu_price: dollars per hour of a GPU; by default the median of the catalog's offers.
    Raises ScenarioError for a model without a tower that is known, or that does not fit the memory.
    """

    name: str
    _: KW_ONLY
    model: str
    gpu: str
    tensor_parallel_size: Positive[int] = 1
    max_batch_size: Positive[int] = 8
    max_wait: NotNegative[Seconds] = 0.0
    bandwidth: Positive[BytesPerSecond] | None = None
    gpu_price: DollarsPerHour | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        model = load_model(self.model)
        if model.vision is None:
            raise ScenarioError(f"model must have a vision tower that is known, got {model.name}")
        cluster = Cluster(load_gpu(self.gpu), self.tensor_parallel_size)
        needed = tower_bytes(model.vision, self.tensor_parallel_size)
        if needed > cluster.gpu.memory:
            raise ScenarioError(
                f"model must fit the memory of {self.gpu}: the vision tower of {model.name} takes "
                f"{needed / 2**30:.2f} GiB a GPU, got {cluster.gpu.memory / 2**30:.2f} GiB"
            )
        self._tower = TowerTimes(model.name, model.vision, cluster)
        self._bytes_per_token = _WIDTH * model.hidden_size
        machine = Machine(model=self._tower.encoder, cluster=cluster, price=self.gpu_price)
        times = TimesOrigin(estimate="analytic", settings={})
        plain = ClientTraits.serving([EncodeImages.kind])
        super().__init__(self.name, replace(plain, times=times, machine=machine))

    def start(self, env: Environment, client_id: int, recorder: Recorder) -> None:
        """Join a simulation, with a track for the passes."""
        super().start(env, client_id, recorder)
        self._track = StepTrack(recorder, client_id)

    def batch_seconds(self, batch: Sequence[Visit]) -> float:
        """Return the seconds of a pass over all images of some prompts, and of sending on."""
        self._images, self._begun_at = _images(batch), self.env.now
        self._seconds = self._tower.seconds(self._images)
        if self.bandwidth is None:
            return self._seconds
        num_tokens = sum([each.tokens for each in self._images])
        return self._seconds + num_tokens * self._bytes_per_token / self.bandwidth

    def batch_ended(self) -> None:
        """Write the pass, from which watts and GPU time follow."""
        parts = [(each.patches, 0) for each in self._images for _ in range(each.parts)]
        end, waiting = self._begun_at + self._seconds, self.view.num_waiting
        self._track.step(self._begun_at, end, StepBatch(tuple(parts)), num_waiting=waiting)


def _images(batch: Sequence[Visit]) -> list[Image]:
    found: list[Image] = []
    for visit in batch:
        for stage in visit.stages:
            if isinstance(stage, EncodeImages):
                found += [stage.image] * stage.num_images
    return found
