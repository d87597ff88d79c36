"""Options of `mist bestserve`: the load, and the strategies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mist_sim.cli.lists import option_of, whole_numbers
from mist_sim.errors import ScenarioError

if TYPE_CHECKING:
    from mist_sim.bestserve.strategy import Space

_REQUESTS = 10_000  # BestServe, Tables 4 and 5


def load_keys(given: Mapping[str, Any], *, is_alone: bool) -> dict[str, Any]:
    """Return the keys of a scenario that options give.

    given: by the names of parameters, such as input_len; None: not given. is_alone: they are all of
    it, without a file.
    Raises ScenarioError where something is missing then.
    """
    for name in ("input_len", "output_len", "requests"):
        if (value := given[name]) is not None and value < 1:
            raise ScenarioError(f"{option_of(name)} must be >= 1, got {value}")
    if given["output_len"] == 1:
        raise ScenarioError(
            "--output-len must be >= 2 tokens, got 1: the first token is the prefill's, and "
            "nothing is left to decode"
        )
    lengths = "workload.lengths."
    said = {
        "model": given["model"],
        "clients.0.gpu": given["gpu"],
        f"{lengths}prompt": _fixed(given["input_len"]),
        f"{lengths}output": _fixed(given["output_len"]),
        f"{lengths}num_requests": given["requests"],
        "slo.ttft": _limit(given["ttft_ms"]),
        "slo.tpot": _limit(given["tpot_ms"]),
    }
    found = _base(given) if is_alone else {}
    return found | {key: value for key, value in said.items() if value is not None}


def _base(given: Mapping[str, Any]) -> dict[str, Any]:
    needed = ("model", "gpu", "input_len", "output_len")
    missing = [option_of(name) for name in needed if given[name] is None]
    if given["ttft_ms"] is None and given["tpot_ms"] is None:
        missing.append("--ttft-ms or --tpot-ms")
    if missing:
        raise ScenarioError(
            f"without a SCENARIO, {', '.join(missing)} must be given; such as mist bestserve "
            "--model llama-3.1-8b --gpu h100-sxm --input-len 2048 --output-len 64 "
            "--ttft-ms 500 --tpot-ms 25"
        )
    return {
        "workload": {
            "lengths": {"type": "synthetic", "num_requests": _REQUESTS},
            "arrivals": {"type": "poisson", "rate": "1 /s"},
        },
        "clients": [{"name": "instance"}],
        "slo": {},
    }


def _limit(ms: float | None) -> str | None:
    return None if ms is None else f"{ms!r} ms"


def _fixed(tokens: int | None) -> dict[str, Any] | None:
    return None if tokens is None else {"type": "fixed", "tokens": tokens}


def names_in(option: str, text: str | None) -> tuple[str, ...]:
    """Return the names of a list, such as "h100,l40s". Raises ScenarioError for an empty name."""
    names = () if text is None else tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise ScenarioError(f"{option} must be NAME or NAME,NAME,..., got {text!r}")
    return names


def space_of(
    *,
    gpus: tuple[str, ...],
    strategies: str | None,
    instances: int | None,
    tp: str | None,
    pp: str | None,
    prefill_batch: str,
    decode_batch: str,
    max_gpus: int | None,
) -> Space:
    """Return the strategies to compare. Raises ScenarioError for impossible ones."""
    from mist_sim.bestserve.strategy import Space

    if strategies is not None and instances is not None:
        raise ScenarioError(
            f"--instances must be left out where --strategies names them, got {instances}"
        )
    return Space(
        names=tuple(strategies.split(",")) if strategies is not None else (),
        gpus=gpus if len(gpus) > 1 else (),
        instances=5 if instances is None else instances,
        tensor_parallel_sizes=_sizes("--tp", tp),
        pipeline_parallel_sizes=_sizes("--pp", pp),
        prefill_batches=_sizes("--prefill-batch", prefill_batch),
        decode_batches=_sizes("--decode-batch", decode_batch),
        max_gpus=max_gpus,
    )


def _sizes(option: str, text: str | None) -> tuple[int, ...]:
    return () if text is None else whole_numbers(text, option)
