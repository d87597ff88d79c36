"""Print the table of pipelines of which docs/background/parallelism.md shows some rows.

Three models on two ranks, with ample and with short memory, as engines of several versions run
them; a few minutes on one core.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import mist_sim as mist

NUM_REQUESTS = 500


class Setting(NamedTuple):
    """A model on two ranks: GPUs of each, requests a second, and blocks of the short memory."""

    model: str
    gpus: int
    rate: float
    blocks: int


SETTINGS = (
    Setting("llama-3.1-405b", 8, 4.0, 1_200),
    Setting("gpt-oss-20b", 1, 40.0, 8_000),
    Setting("gemma-3-27b", 1, 8.0, 12_000),
)
ENGINES: dict[str, dict[str, Any]] = {
    "`virtual_engines: true`": {"virtual_engines": True},
    "`vllm-0.33`": {"engine": "vllm-0.33"},
    "`vllm-0.33`, `async_scheduling: false`": {"engine": "vllm-0.33", "async_scheduling": False},
    "`vllm-0.19`": {"engine": "vllm-0.19"},
}


def main() -> None:
    """Run everything, and print the table."""
    print("\n".join(_table()))


def _table() -> Iterator[str]:
    yield "| model | engine | TTFT | TPOT | preemptions | short memory: TTFT | TPOT | preemptions |"
    yield "|---|---|--:|--:|--:|--:|--:|--:|"
    for setting in SETTINGS:
        for name, options in ENGINES.items():
            cells = [*_run(setting, options, None), *_run(setting, options, setting.blocks)]
            yield f"| {setting.model} | {name} | {' | '.join(cells)} |"


def _run(setting: Setting, options: dict[str, Any], blocks: int | None) -> tuple[str, str, str]:
    """Return mean TTFT and TPOT, and the number of preemptions."""
    memory = {"kv_cache": {"num_gpu_blocks_override": blocks}} if blocks else {}
    client = {
        "name": "llm",
        "gpu": "h100-sxm",
        "tensor_parallel_size": setting.gpus,
        "pipeline_parallel_size": 2,
    }
    lengths = {"type": "profile", "name": "azure-conv-2023", "num_requests": NUM_REQUESTS}
    scenario = mist.Scenario.from_dict(
        {
            "model": setting.model,
            "workload": {
                "lengths": lengths,
                "arrivals": {"type": "poisson", "rate": f"{setting.rate:g} /s"},
            },
            "clients": [client | memory | options],
        }
    )
    requests = mist.simulate(scenario).requests
    ttft, tpot = requests["ttft"].mean(), 1e3 * requests["tpot"].mean()
    number = f"{requests['num_preemptions'].sum():.0f}"
    found = f"{ttft:.3g} s", f"{tpot:.1f} ms", number
    print(setting.model, options, blocks, *found, flush=True)
    return found


if __name__ == "__main__":
    main()
