"""Workloads through an installed vLLM: it needs vLLM and the standard library alone.

`python -m conformance.vllm_side [--async] < workloads.json > results.json`, from the folder that
holds `conformance`.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import sys
from typing import Any

from conformance.vllm_side.engine import Engine

_COUNTS = ("preemptions", "cached")  # of each job
_RESERVE = "scheduler_reserve_full_isl"  # since 0.19; before, prompts go by their first chunk


def serve(spec: dict[str, Any], asynchronous: bool, options: dict[str, Any]) -> dict[str, Any]:
    """Return what became of a workload whose jobs are dealt to its engines in turn.

    The steps of the first engine come first.
    """
    num_engines, jobs = spec["num_engines"], spec["jobs"]
    found: dict[str, Any] = {"stuck": False, "ends": [], "steps": []}
    each = {name: [None] * len(jobs) for name in ("arrivals", "token_steps", *_COUNTS)}
    for engine in range(min(num_engines, len(jobs))):
        part = Engine(spec | {"jobs": jobs[engine::num_engines]}, asynchronous, options).run()
        if part["stuck"]:
            return part
        num_before = len(found["ends"])
        part["token_steps"] = [[num_before + step for step in s] for s in part["token_steps"]]
        for name, values in each.items():
            values[engine::num_engines] = part[name]
        for rows, preempted, used in part["steps"]:
            renamed = [[engine + num_engines * name, *row] for name, *row in rows]
            names = [engine + num_engines * name for name in preempted]
            found["steps"].append([renamed, names, used])
        found["ends"] += part["ends"]
    return found | each


def main() -> None:
    """Read workloads, write results."""
    os.environ |= {"VLLM_TARGET_DEVICE": "cpu", "VLLM_LOGGING_LEVEL": "ERROR"}
    specs, asynchronous = json.load(sys.stdin), "--async" in sys.argv
    with contextlib.redirect_stdout(sys.stderr):
        import vllm
        from vllm.config import SchedulerConfig
        from vllm.utils.hashing import sha256
        from vllm.v1.core.kv_cache_utils import init_none_hash

        init_none_hash(sha256)
        has_reserve = _RESERVE in inspect.signature(SchedulerConfig).parameters
        reserves = has_reserve and "--first-chunk" not in sys.argv
        options = {_RESERVE: reserves} if has_reserve else {}
        results = [serve(spec, asynchronous, options) for spec in specs]
    found = {"version": vllm.__version__, "options": {_RESERVE: reserves}, "results": results}
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main()
