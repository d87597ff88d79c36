"""What the command line of `mist bestserve` says of what is served, and of the strategies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mist_sim.errors import ScenarioError, brief

if TYPE_CHECKING:
    from mist_sim.bestserve.space import Space

_REQUESTS = 10_000  # BestServe, Tables 4 and 5


@dataclass(frozen=True)
class Given:
    """What is said of a scenario without a file; None: nothing."""

    model: str | None
    gpu: str | None
    prompt: int | None
    output: int | None
    requests: int | None
    ttft: str | None
    tpot: str | None

    def keys(self, *, is_alone: bool) -> dict[str, Any]:
        """Return the keys of a scenario. is_alone: they are all of it, without a file.

        Raises ScenarioError where something is missing then.
        """
        for name in ("prompt", "output", "requests"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise ScenarioError(f"--{name} must be >= 1, got {value}")
        if self.output == 1:
            raise ScenarioError(
                "--output must be >= 2 tokens, got 1: the first token is the prefill's, and "
                "nothing is left to decode"
            )
        found = self._base() if is_alone else {}
        lengths = "workload.lengths."
        said = {
            "model": self.model,
            "clients.0.gpu": self.gpu,
            f"{lengths}prompt": _fixed(self.prompt),
            f"{lengths}output": _fixed(self.output),
            f"{lengths}num_requests": self.requests,
            "slo.ttft": self.ttft,
            "slo.tpot": self.tpot,
        }
        return found | {key: value for key, value in said.items() if value is not None}

    def _base(self) -> dict[str, Any]:
        needed = ("model", "gpu", "prompt", "output")
        missing = [f"--{name}" for name in needed if getattr(self, name) is None]
        if self.ttft is None and self.tpot is None:
            missing.append("--ttft or --tpot")
        if missing:
            raise ScenarioError(
                f"without a SCENARIO, {', '.join(missing)} must be given; such as mist bestserve "
                "--model llama-3.1-8b --gpu h100-sxm --prompt 2048 --output 64 --ttft '500 ms' "
                "--tpot '25 ms'"
            )
        return {
            "workload": {
                "lengths": {"type": "synthetic", "num_requests": _REQUESTS},
                "arrivals": {"type": "poisson", "rate": "1 /s"},
            },
            "clients": [{"name": "instance"}],
            "slo": {},
        }


def _fixed(tokens: int | None) -> dict[str, Any] | None:
    return None if tokens is None else {"type": "fixed", "tokens": tokens}


def space_of(
    *,
    strategies: str | None,
    instances: int | None,
    tp: str | None,
    pp: str | None,
    prefill_batch: str,
    decode_batch: str,
    max_gpus: int | None,
) -> Space:
    """Return the strategies to compare. Raises ScenarioError for what cannot be."""
    from mist_sim.bestserve.space import Space

    if strategies is not None and instances is not None:
        raise ScenarioError(
            f"--instances must be left out where --strategies names them, got {instances}"
        )
    return Space(
        names=tuple(strategies.split(",")) if strategies is not None else (),
        instances=5 if instances is None else instances,
        tensor_parallel_sizes=numbers_of("--tp", tp),
        pipeline_parallel_sizes=numbers_of("--pp", pp),
        prefill_batches=numbers_of("--prefill-batch", prefill_batch),
        decode_batches=numbers_of("--decode-batch", decode_batch),
        max_gpus=max_gpus,
    )


def numbers_of(option: str, text: str | None) -> tuple[int, ...]:
    """Return whole numbers >= 1 with commas between; nothing for None. Raises ScenarioError."""
    if text is None:
        return ()
    try:
        found = tuple(int(word) for word in text.split(","))
    except ValueError:
        found = (0,)
    if min(found) < 1:
        raise ScenarioError(
            f"{option} must be whole numbers >= 1, with commas between, got {brief(text)}"
        )
    return found
