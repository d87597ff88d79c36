"""The runs that are timed, each as a scenario."""

from __future__ import annotations

from pathlib import Path
from typing import Any

AZURE = Path(__file__).parents[2] / "shared/traces/AzureLLMInferenceTrace_conv.csv"
SHORT = {"num_gpu_blocks_override": 900}  # the longest prompt of the trace takes 879
# with answers x 8 about 25,000 requests give way
PRESSED: dict[str, dict[str, Any]] = {
    "chunked": {"kv_cache": {"num_gpu_blocks_override": 1_500}},
    "continuous": {"scheduler": "continuous", "kv_cache": {"num_gpu_blocks_override": 1_500}},
    "chunked, swapping": {"preemption": "swap", "kv_cache": {"num_gpu_blocks_override": 1_500}},
    "chunked, pipelines of 2": {
        "tensor_parallel_size": 2,
        "pipeline_parallel_size": 2,
        "kv_cache": {"num_gpu_blocks_override": 3_000},
    },
}
AZURE_RATE = "5.53 /s"  # 19,366 requests in 3,502 s


def azure(
    trace: Path = AZURE, *, num_clients: int = 4, scheduler: str = "chunked", **more: Any
) -> dict[str, Any]:
    """Azure conversations on Llama-3.1-70B, H100 x TP 4; the shipped profile without the trace.

    more: see `_clients`.
    """
    if trace.exists():
        workload: dict[str, Any] = {"trace": {"type": "azure", "path": str(trace)}}
    else:
        workload = {
            "lengths": {"type": "profile", "num_requests": 19_366},
            "arrivals": {"type": "poisson", "rate": AZURE_RATE},
        }
    return {
        "model": "llama-3.1-70b",
        "workload": workload,
        **_clients(num_clients, scheduler, **more),
    }


def apart(trace: Path = AZURE) -> dict[str, Any]:
    """The same conversations with prefill and decode apart, 4 + 4 clients on shared links."""
    plain = azure(trace)
    (client,) = plain["clients"]
    roles = [client | {"name": role, "role": role} for role in ("prefill", "decode")]
    return plain | {"clients": roles, "network": {"topology": "hgx-h100", "nodes": 4}}


def flowing(trace: Path = AZURE) -> dict[str, Any]:
    """The same with TaiChi, 4 + 4 clients of so little memory that answers flow."""
    plain = azure(trace)
    (client,) = plain["clients"]
    chunks = {"p_heavy": 2048, "d_heavy": 512}
    clients = [
        client
        | {
            "name": role,
            "role": role,
            "kv_cache": {"num_gpu_blocks_override": 1_900},
            "scheduler": client["scheduler"] | {"max_num_batched_tokens": chunk},
        }
        for role, chunk in chunks.items()
    ]
    return plain | {
        "clients": clients,
        "network": {"topology": "hgx-h100", "nodes": 4},
        "hand_over": {"first_token": "decode", "policy": {"type": "flowing", "tpot": "18 ms"}},
        "router": {"type": "length_aware", "ttft": "1 s"},
    }


def long_prompt(chunk: int) -> dict[str, Any]:
    """2,000 prompts of 16,384 tokens, each alone on one client, in chunks of so many tokens."""
    return {
        "model": "llama-3.1-70b",
        "workload": {
            "lengths": {
                "type": "synthetic",
                "num_requests": 2_000,
                "prompt": {"type": "fixed", "tokens": 16_384},
                "output": {"type": "fixed", "tokens": 2},
            },
            "arrivals": {"type": "constant", "rate": "0.1 /s"},
        },
        **_clients(1, max_num_batched_tokens=chunk, max_num_seqs=min(chunk, 256)),
    }


def long_prompt_in_windows(chunk: int) -> dict[str, Any]:
    """The same prompts for a model with sliding windows, each with content of its own.

    Of 1,024 blocks 1,023 may be found again, but hardly a prompt comes twice.
    """
    scenario = long_prompt(chunk)
    scenario["workload"]["lengths"] = {
        "type": "prefix_repetition",
        "num_requests": 2_000,
        "num_prefixes": 10_000,
        "prefix_len": 16_368,
        "suffix": {"type": "fixed", "tokens": 16},
        "output": {"type": "fixed", "tokens": 2},
    }
    return scenario | {"model": "gpt-oss-120b"}


def longer_answers(folder: Path, factor: int) -> Path:
    """Write the Azure trace with all answers `factor` times as long; return the new file."""
    header, *rows = AZURE.read_text().splitlines()
    target = folder / "longer.csv"
    longer = (row.rsplit(",", 1) for row in rows)
    lines = [f"{rest},{int(tokens) * factor}" for rest, tokens in longer]
    target.write_text("\n".join([header, *lines]) + "\n")
    return target


def lognormal(
    *,
    num_requests: int,
    num_clients: int,
    output_factor: int = 1,
    scheduler: str = "chunked",
    router: str | dict[str, str] = "least_outstanding",
) -> dict[str, Any]:
    """Lognormal lengths with the means of the Azure conversations, Poisson arrivals.

    With `output_factor` the arrival rate falls, so that the number of requests in a batch stays
    the same and only the number of steps between two events grows. Static batches, which cannot
    keep up with the rate of Azure's trace, get half of it.
    """
    per_client = 0.69 if scheduler == "static" else 1.38
    per_second = num_clients * per_client / output_factor
    return {
        "model": "llama-3.1-70b",
        "workload": {
            "lengths": {
                "type": "synthetic",
                "num_requests": num_requests,
                "prompt": {"type": "lognormal", "mean": 1155.0, "std": 1109.0},
                "output": {
                    "type": "lognormal",
                    "mean": 211.0 * output_factor,
                    "std": 163.0 * output_factor,
                },
            },
            "arrivals": {"type": "poisson", "rate": f"{per_second} /s"},
        },
        **_clients(num_clients, scheduler),
        "router": router,
    }


def prefixes(
    scheduler: str,
    *,
    num_requests: int = 19_366,
    num_clients: int = 4,
    num_prefixes: int = 50,
    router: str = "least_outstanding",
) -> dict[str, Any]:
    """About the same load on each client, with prompts that begin with one of some texts."""
    rate = AZURE_RATE if num_clients == 4 else f"{1.3825 * num_clients} /s"
    return {
        "model": "llama-3.1-70b",
        "workload": {
            "lengths": {
                "type": "prefix_repetition",
                "num_requests": num_requests,
                "num_prefixes": num_prefixes,
                "prefix_len": 512,
                "suffix": {"type": "lognormal", "mean": 643.0, "std": 1109.0},
                "output": {"type": "lognormal", "mean": 211.0, "std": 163.0},
            },
            "arrivals": {"type": "poisson", "rate": rate},
        },
        **_clients(num_clients, scheduler),
        "router": router,
    }


def _clients(
    count: int,
    scheduler: str = "chunked",
    max_num_batched_tokens: int = 8192,
    max_num_seqs: int = 256,
    preemption: str = "recompute",
    **more: Any,
) -> dict[str, Any]:
    """Return clients with one scheduler that plan no step ahead; more: other keys of them."""
    return {
        "clients": [
            {
                "name": "llm",
                "count": count,
                "gpu": "h100-sxm",
                "tensor_parallel_size": 4,
                "scheduler": {
                    "type": scheduler,
                    "max_num_batched_tokens": max_num_batched_tokens,
                    "max_num_seqs": max_num_seqs,
                    "preemption": preemption,
                },
                "async_scheduling": False,
                **more,
            }
        ],
        "router": "least_outstanding",
        "slo": {"ttft": "2 s", "tpot": "100 ms"},
    }
