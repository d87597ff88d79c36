"""One timed run in a process of its own: CPU time, memory, and T of the same process."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.unit import bare_timeout_s


@dataclass(frozen=True)
class Measurement:
    """CPU seconds of the best run; T in seconds; peak memory in bytes.

    num_requests: finished. num_events: what a bare SimPy loop would wait for: the arrival of each
    request and the end of each run of steps.
    """

    num_requests: int
    num_preemptions: int
    num_events: int
    cpu_s: float
    t_s: float
    rss_bytes: int

    @property
    def t_per_request(self) -> float:
        """Processor time of a request, in units of T."""
        return self.cpu_s / self.t_s / self.num_requests

    @property
    def requests_per_s(self) -> float:
        """Requests simulated per second of processor time."""
        return self.num_requests / self.cpu_s

    @property
    def bare_requests_per_s(self) -> float:
        """Requests a second if each cost nothing but its events, a bare timeout for each."""
        return self.num_requests / (self.num_events * self.t_s)


def measure(scenario: dict[str, Any], repeats: int = 3) -> Measurement:
    """Time `simulate()` with its summary in a new process, `repeats` times; keep the best."""
    command = [sys.executable, "-m", "benchmarks.measure", json.dumps(scenario), str(repeats)]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return Measurement(**json.loads(output))


def _run_here(scenario: dict[str, Any], repeats: int) -> Measurement:
    from mist_sim import Scenario, simulate

    unit, best, summary, num_runs = bare_timeout_s(), float("inf"), {}, 0
    for _ in range(repeats):
        start = time.process_time()
        result = simulate(Scenario.from_dict(scenario))
        summary = result.summary
        best = min(best, time.process_time() - start)
        unit = min(unit, bare_timeout_s())
        num_runs = sum(len(table.columns()["start"]) for table in result.recorder.steps)
    rss_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    completed, preempted = summary["completed"], summary["num_preemptions"]
    return Measurement(completed, preempted, completed + num_runs, best, unit, rss_kib * 1024)


if __name__ == "__main__":
    print(json.dumps(asdict(_run_here(json.loads(sys.argv[1]), int(sys.argv[2])))))
