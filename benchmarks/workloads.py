"""The runs that are timed, each as a scenario."""

from __future__ import annotations

from pathlib import Path
from typing import Any

AZURE = Path(__file__).parents[2] / "shared/traces/AzureLLMInferenceTrace_conv.csv"
AZURE_RATE = "5.53 /s"  # 19,366 requests in 3,502 s


def azure(*, num_clients: int = 4, num_requests: int = 19_366) -> dict[str, Any]:
    """Azure conversations on Llama-3.1-70B, H100 x TP 4; the shipped profile without the trace."""
    if AZURE.exists():
        workload: dict[str, Any] = {
            "trace": {"type": "azure", "path": str(AZURE), "num_requests": num_requests},
            "arrivals": {"type": "trace", "speedup": num_clients / 4},
        }
    else:
        workload = {
            "lengths": {"type": "profile", "num_requests": num_requests},
            "arrivals": {"type": "poisson", "rate": AZURE_RATE},
        }
    return {"model": "llama-3.1-70b", "workload": workload, **_clients(num_clients)}


def lognormal(
    *, num_requests: int, num_clients: int, output_factor: int = 1, rate: float | None = None
) -> dict[str, Any]:
    """Lognormal lengths with the means of the Azure conversations, Poisson arrivals.

    rate: requests a second and client; with `output_factor` the rate falls, so that the number
    of requests in a batch stays the same and only the number of tokens grows.
    """
    per_second = num_clients * (rate or 1.38) / output_factor
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
        **_clients(num_clients),
    }


def _clients(count: int) -> dict[str, Any]:
    return {
        "clients": [
            {
                "name": "llm",
                "count": count,
                "gpu": "h100-sxm",
                "tensor_parallel_size": 4,
                "scheduler": {"type": "chunked", "max_num_batched_tokens": 8192},
            }
        ],
        "router": "least_outstanding",
        "slo": {"ttft": "2 s", "tpot": "100 ms"},
    }
