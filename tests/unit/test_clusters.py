"""Studies on a cluster: a Dask scheduler and two workers over loopback give the same results."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys

import pytest

from mist_sim import Scenario, study
from mist_sim.studies.clusters import executor_at

needs_dask = pytest.mark.skipif(
    importlib.util.find_spec("distributed") is None,
    reason="dask.distributed is not installed: pip install 'mist-sim[dask]'",
)
ASKED = {
    "model": "llama-3.1-8b",
    "workload": {
        "lengths": {"type": "profile", "name": "azure-conv-2023", "num_requests": 30},
        "arrivals": {"type": "poisson", "rate": "20 /s"},
    },
    "clients": [{"name": "llm", "gpu": "h100-sxm"}],
    "slo": {"ttft": "500 ms", "tpot": "25 ms"},
}


@pytest.fixture(scope="module")
def dask():
    """The address of a scheduler with two worker processes, which end with the test."""
    words = [sys.executable, "-m", "distributed.cli.dask_scheduler"]
    options = ["--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--no-show"]
    with subprocess.Popen([*words, *options], stderr=subprocess.PIPE, text=True) as scheduler:
        address = None
        for line in scheduler.stderr:
            if match := re.search(r"Scheduler at:\s+(tcp://127\.0\.0\.1:\d+)", line):
                address = match[1]
                break
        words = [sys.executable, "-m", "distributed.cli.dask_worker", address]
        options = ["--nthreads", "1", "--no-dashboard", "--no-nanny"]
        workers = [
            subprocess.Popen([*words, *options], stderr=subprocess.DEVNULL) for _ in range(2)
        ]
        try:
            yield address.replace("tcp", "dask")
        finally:
            for worker in workers:
                worker.terminate()
            for worker in workers:
                worker.wait()
            scheduler.terminate()


@needs_dask
@pytest.mark.slow
def test_a_dask_cluster_gives_identical_results(dask):
    scenario = Scenario.from_dict(ASKED)
    asked = {"vary": {"clients.0.count": [1, 2], "slo.ttft": ["1 s", "0 s"]}, "seeds": 2}
    here = study(scenario, **asked, jobs=1)
    there = study(scenario, **asked, executor=executor_at(dask))
    assert there.summary == here.summary
    assert there.num_failed == here.num_failed > 0
