"""Small files in the forms of published measurements, made from laws, for tests that read them.

They stand in for the measurements that lie beside the repository: what reads, fits and compares
those is tested on these, too, where they are not there.
"""

import csv
import gzip
import io
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from mist_sim.hardware import GpuSpec
from mist_sim.models import load_model

Row = Mapping[str, Any]


def write_rows(path: Path, rows: Iterable[Row]) -> Path:
    """Write rows as CSV, packed where the name says so."""
    rows = list(rows)
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    content = text.getvalue().encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


# --- Splitwise --------------------------------------------------------------------------------

ANSWER = 128  # tokens
SPLITWISE_SETTINGS = (("llama2-70b", 2), ("llama2-70b", 4), ("llama2-70b", 8), ("bloom-176b", 8))
SIZES = (128, 512, 1024, 2048)
BATCHES = (1, 2, 8, 32)


def splitwise_rows(
    hardware: str, prompt_ms: Any, token_ms: Any, *, in_parts: tuple[int, int] | None = None
) -> Iterator[Row]:
    """Yield rows of every setting, each point three times, of which the middle one counts.

    prompt_ms, token_ms: milliseconds by (model, ranks, prompt, batch).
    in_parts: a prompt and a batch that did not run at once: it took half as long again end to end.
    """
    points = [(size, 1) for size in SIZES] + [(512, batch) for batch in BATCHES[1:]]
    for model, ranks in SPLITWISE_SETTINGS:
        for size, batch in points:
            prompt, token = (
                prompt_ms(model, ranks, size, batch),
                token_ms(model, ranks, size, batch),
            )
            whole = prompt + (ANSWER - 1) * token
            for factor in (0.9, 1.0, 1.1):
                yield {
                    "model": model,
                    "hardware": hardware,
                    "prompt_size": size,
                    "batch_size": batch,
                    "token_size": ANSWER,
                    "peak_power": 1.0,
                    "average_power": 0.7,
                    "prompt_time": factor * prompt,
                    "token_time": factor * token,
                    "e2e_time": factor * whole * (1.5 if (size, batch) == in_parts else 1.0),
                    "tensor_parallel": ranks,
                }
    yield {  # another length of answers, which does not count
        "model": "llama2-70b",
        "hardware": hardware,
        "prompt_size": 512,
        "batch_size": 1,
        "token_size": 16,
        "peak_power": 1.0,
        "average_power": 0.1,
        "tensor_parallel": 2,
        "prompt_time": 1.0,
        "token_time": 1.0,
        "e2e_time": 16.0,
    }


# --- layers of LLMServingSim 1 ----------------------------------------------------------------


def layer_rows(gpu: GpuSpec, mfu: float, mbu: float, floor: float) -> Iterator[Row]:
    """Yield kernels of Llama-3.1-8B on one card, each as long as these figures say.

    floor: seconds. Kernels that are no products are there as well, and take as long as they like.
    """
    model = load_model("llama-3.1-8b")
    h, inner = model.hidden_size, model.intermediate_size
    kv = model.num_key_value_heads * model.head_dim
    sides = {
        "q_proj": (h, h),
        "k_proj": (h, kv),
        "v_proj": (h, kv),
        "o_proj": (h, h),
        "gate_proj": (h, inner),
        "up_proj": (h, inner),
        "down_proj": (inner, h),
    }
    for tokens in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048):
        for name, (rows, columns) in sides.items():
            compute = 2 * tokens * rows * columns / gpu.flops["bf16"] / mfu
            moved = 2 * (rows * columns + tokens * (rows + columns))
            seconds = floor + math.hypot(compute, moved / gpu.memory_bandwidth / mbu)
            yield _layer(name, tokens, seconds * 1e9)
        yield _layer("act_fn", tokens, 5_000.0)


def _layer(name: str, tokens: int, ns: float) -> Row:
    return {"layer_name": name, "input": tokens, "kv_cache": 0, "tp_size": 1, "latency(ns)": ns}


# --- vLLM's core, request by request ----------------------------------------------------------


def stamped(request: int, queued: float, first: float, last: float, tokens: int) -> str:
    """Return a line of a request, as the engine core stamped it; seconds of a clock of its own."""
    return json.dumps(
        {
            "request_id": f"bench-{request}",
            "input_toks": 64,
            "output_toks": tokens,
            "arrival_time": 1777142838.0 + queued,
            "queued_ts": 479748.0 + queued,
            "scheduled_ts": 479748.0 + queued,
            "first_token_ts": 479748.0 + first,
            "last_token_ts": 479748.0 + last,
        }
    )
