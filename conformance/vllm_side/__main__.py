"""Workloads through an installed vLLM: it needs vLLM and the standard library alone.

`python -m conformance.vllm_side [--async] < workloads.json > results.jsonl`, from the folder that
holds `conformance`. The first line has the version and the options of its scheduler; then comes a
line for each workload, as soon as it has run.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import sys
import traceback
from collections.abc import Iterator
from typing import Any

from conformance.vllm_side.engine import Engine
from conformance.vllm_side.scheduler import lacks

_COUNTS = ("preemptions", "cached")  # of each job
_RESERVE = "scheduler_reserve_full_isl"  # since 0.19; before, prompts go by their first chunk


class CannotBuildError(Exception):
    """The installed vLLM has no scheduler for a workload."""


def serve(spec: dict[str, Any], asynchronous: bool, options: dict[str, Any]) -> dict[str, Any]:
    """Return what became of a workload whose jobs are dealt to its engines in turn.

    The steps of the first engine come first. Raises CannotBuildError where the installed vLLM has
    no scheduler for it.
    """
    if reason := lacks(spec):
        raise CannotBuildError(reason)
    num_engines, jobs = spec["num_engines"], spec["jobs"]
    found: dict[str, Any] = {"stuck": False, "ends": [], "steps": []}
    each = {name: [None] * len(jobs) for name in ("arrivals", "token_steps", *_COUNTS)}
    for number in range(min(num_engines, len(jobs))):
        try:
            engine = Engine(spec | {"jobs": jobs[number::num_engines]}, asynchronous, options)
        except Exception as error:
            raise CannotBuildError(said(error)) from error
        part = engine.run()
        if part["stuck"]:
            return part
        num_before = len(found["ends"])
        part["token_steps"] = [[num_before + step for step in s] for s in part["token_steps"]]
        for name, values in each.items():
            values[number::num_engines] = part[name]
        for rows, preempted, used in part["steps"]:
            renamed = [[number + num_engines * name, *row] for name, *row in rows]
            names = [number + num_engines * name for name in preempted]
            found["steps"].append([renamed, names, used])
        found["ends"] += part["ends"]
    return found | each


def results(
    specs: list[dict[str, Any]], asynchronous: bool, options: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    """Yield what became of each workload; once one of a class has failed, that for all of it.

    Of those that failed: `failed`, why, and `built`, whether there was a scheduler.
    """
    failures: dict[str, dict[str, Any]] = {}  # by class
    for spec in specs:
        name = spec["name"]
        if name not in failures:
            try:
                yield serve(spec, asynchronous, options)
                continue
            except CannotBuildError as error:
                failures[name] = {"failed": str(error), "built": False}
            except Exception as error:  # noqa: BLE001 - the classes behind it are compared all the same
                traceback.print_exc()
                failures[name] = {"failed": said(error), "built": True}
        yield failures[name]


def said(error: Exception) -> str:
    """Return the kind of an error and the first line of its text."""
    first, *_ = str(error).splitlines() or [""]
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def main() -> None:
    """Read workloads, write results."""
    os.environ |= {"VLLM_TARGET_DEVICE": "cpu", "VLLM_LOGGING_LEVEL": "ERROR"}
    specs, asynchronous, out = json.load(sys.stdin), "--async" in sys.argv, sys.stdout
    with contextlib.redirect_stdout(sys.stderr):
        import vllm
        from vllm.config import SchedulerConfig
        from vllm.utils.hashing import sha256
        from vllm.v1.core.kv_cache_utils import init_none_hash

        init_none_hash(sha256)
        has_reserve = _RESERVE in inspect.signature(SchedulerConfig).parameters
        reserves = has_reserve and "--first-chunk" not in sys.argv
        options = {_RESERVE: reserves} if has_reserve else {}
        header = {"version": vllm.__version__, "options": {_RESERVE: reserves}}
        print(json.dumps(header), file=out, flush=True)
        for result in results(specs, asynchronous, options):
            print(json.dumps(result), file=out, flush=True)


if __name__ == "__main__":
    main()
