"""The protocol of the closed loops to which an engine's own time is fitted."""

from __future__ import annotations

from dataclasses import dataclass

from mist_sim.clients.scheduling import ChunkedScheduler
from mist_sim.errors import ScenarioError
from mist_sim.hardware import GpuSpec
from mist_sim.hardware.sampling import Sampling
from mist_sim.scenario import llm_client, server_limits
from mist_sim.scenario.engines.version_names import version_of
from mist_sim.simulation import Simulation
from mist_sim.traces import ClosedLoop, Workload

REQUESTS_PER_USER = 10
GREEDY = Sampling(temperature=0)  # of loads with given lengths


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopProtocol:
    """The drivers of closed loops, and the limits of the engine that served them, greedily.

    think_time: seconds from an answer to the user's next request (>= 0).
    max_num_batched_tokens, max_num_seqs: of the engine; None: the defaults of vLLM's server on the
        GPU.
    tokens_beyond_prompt: if the engine was restarted for each length of prompts with
        max_num_batched_tokens of that length plus this; None: one value for all.
    engine: the version of vLLM that was measured, which says whether host and GPU took turns; None:
        the newest that is known.
    """

    think_time: float = 0.0
    max_num_batched_tokens: int | None = None
    max_num_seqs: int | None = None
    tokens_beyond_prompt: int | None = None
    engine: str | None = None

    def __post_init__(self) -> None:
        version_of(self.engine)  # refuses names that are not known
        ClosedLoop(concurrency=1, think_time=self.think_time)  # refuses invalid times
        if self.tokens_beyond_prompt is None:
            return
        if self.max_num_batched_tokens is not None:
            raise ValueError(
                "max_num_batched_tokens has no effect together with tokens_beyond_prompt"
            )
        if self.tokens_beyond_prompt < 0:
            raise ValueError(f"tokens_beyond_prompt must be >= 0, got {self.tokens_beyond_prompt}")

    def scheduler(self, gpu: GpuSpec, prompt: int) -> ChunkedScheduler:
        """Return the scheduler of the engine that served prompts of that many tokens.

        Raises ScenarioError for limits that no engine has.
        """
        limits = server_limits(gpu, version=version_of(self.engine))
        tokens = self.max_num_batched_tokens or limits.max_num_batched_tokens
        if self.tokens_beyond_prompt is not None:
            tokens = prompt + self.tokens_beyond_prompt
        seqs = self.max_num_seqs or min(limits.max_num_seqs, tokens)
        try:
            return ChunkedScheduler(max_num_seqs=seqs, max_num_batched_tokens=tokens)
        except ValueError as error:
            raise ScenarioError(str(error)) from None

    def simulated(self, gpu: GpuSpec, model: str, point: tuple[int, ...]) -> tuple[float, float]:
        """Return mean TPOT and mean TTFT in seconds.

        point: tokens of a prompt and of an answer, users, and ranks.
        Raises ScenarioError for a point with requests that the engine cannot serve.
        """
        prompt, output, concurrency, ranks = point
        client = llm_client(
            "llm",
            model=model,
            gpu=gpu,
            engine=self.engine,
            tensor_parallel_size=ranks,
            scheduler=self.scheduler(gpu, prompt),
            sampling=GREEDY,
        )
        number = REQUESTS_PER_USER * concurrency
        users = ClosedLoop(concurrency=concurrency, think_time=self.think_time)
        workload = Workload.from_lists([prompt] * number, [output] * number, arrivals=users)
        summary = Simulation(clients=[client], workload=workload).run().summary
        if summary["failed"]:
            raise ScenarioError(
                f"isl {prompt}, osl {output}, concurrency {concurrency}, tp_size {ranks}: "
                f"{summary['failed']} of {number} requests do not fit into {model} on {gpu.name}; "
                "leave such points out"
            )
        return summary["mean_tpot_ms"] * 1e-3, summary["mean_ttft_ms"] * 1e-3

    def __str__(self) -> str:
        """The differences to the default, for the source of figures."""
        limits = ("max_num_batched_tokens", "tokens_beyond_prompt", "max_num_seqs")
        said = [f"{name} {value}" for name in limits if (value := getattr(self, name)) is not None]
        delay = [f"think_time {self.think_time * 1e3:g} ms"] if self.think_time else []
        version = f"engine {version_of(self.engine).name}"
        return ", ".join([f"{REQUESTS_PER_USER} requests a user", version, *delay, *said])
