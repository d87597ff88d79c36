"""Studies on a cluster over loopback, of Dask or of Ray, give the same results."""

from __future__ import annotations

import importlib.util
import re
import socket
import subprocess
import sys
import time

import pytest

from mist_sim import Scenario, ScenarioError, study
from mist_sim.search import SearchOptions, Space, search_space
from mist_sim.search.spaces.objectives import constraints_of, objectives_of
from mist_sim.studies import clusters
from mist_sim.studies.clusters import check_versions, executor_at, versions
from tests.reference.scenarios import of_profile

needs_dask = pytest.mark.skipif(
    importlib.util.find_spec("distributed") is None,
    reason="dask.distributed is not installed: pip install 'mist-sim[dask]'",
)
needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None,
    reason="Ray is not installed: pip install 'mist-sim[ray]'",
)
ASKED = {
    "model": "llama-3.1-8b",
    "workload": of_profile(30, "20 /s", name="azure-conv-2023"),
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


@pytest.fixture(scope="module")
def ray():
    """The address of a Ray cluster with two cores, which ends with the test."""
    main, client = _free_port(), _free_port()
    words = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block"]
    options = ["--num-cpus=2", "--include-dashboard=false", "--disable-usage-stats"]
    ports = [f"--port={main}", f"--ray-client-server-port={client}"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    here = ["--node-ip-address=127.0.0.1"]
    with subprocess.Popen([*words, *here, *options, *ports], **quiet) as head:
        try:
            _wait_for(client, head)
            yield f"ray://127.0.0.1:{client}"
        finally:
            head.terminate()


def _free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def _wait_for(port, process, patience_s=120.0):
    end = time.monotonic() + patience_s
    while time.monotonic() < end and process.poll() is None:
        with socket.socket() as one:
            if one.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.2)
    pytest.fail("the Ray cluster did not start")


CLUSTERS = [
    pytest.param("dask", marks=needs_dask),
    pytest.param("ray", marks=needs_ray),
]


@pytest.fixture
def cluster(request):
    """An executor on a cluster."""
    return executor_at(request.getfixturevalue(request.param))


@pytest.mark.parametrize("cluster", CLUSTERS, indirect=True)
def test_a_cluster_gives_identical_results(cluster):
    scenario = Scenario.from_dict(ASKED)
    asked = {"vary": {"clients.0.count": [1, 2], "slo.ttft": ["1 s", "0 s"]}, "seeds": 2}
    here = study(scenario, **asked, jobs=1)
    there = study(scenario, **asked, executor=cluster)
    assert there.summary == here.summary
    assert there.num_failed == here.num_failed > 0


@pytest.mark.parametrize("cluster", CLUSTERS, indirect=True)
def test_a_search_on_a_cluster_finds_the_same(cluster):
    asked = Space(
        scenario=Scenario.from_dict(ASKED),
        vary={"clients.0.gpu": ["h100-sxm", "l40s"], "clients.0.count": [1, 2]},
        constraints=constraints_of({}),
        objectives=objectives_of(["goodput_per_usd", "num_gpus"]),
    )
    options = SearchOptions(as_is=True)
    here = search_space(asked, options, jobs=1)
    there = search_space(asked, options, executor=cluster)
    assert there.summary == here.summary


@needs_dask
def test_a_scheduler_that_nobody_runs(monkeypatch):
    monkeypatch.setattr(clusters, "_PATIENCE", 1)
    with pytest.raises(ScenarioError, match="dask://127.0.0.1:9: no Dask scheduler answers"):
        study(Scenario.from_dict(ASKED), seeds=2, executor=executor_at("dask://127.0.0.1:9"))


@pytest.mark.parametrize("address", ["", "dask", "tcp://a:1", "dask://a", "ray://a:b", "ray://a:0"])
def test_addresses_that_are_none(address):
    with pytest.raises(
        ScenarioError, match="--cluster must be dask://HOST:PORT or ray://HOST:PORT"
    ):
        executor_at(address)


@pytest.mark.parametrize(
    ("package", "address"), [("distributed", "dask://a:1"), ("ray", "ray://a:1")]
)
def test_a_package_that_is_missing(monkeypatch, package, address):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ScenarioError, match=r"pip install 'mist-sim\[(dask|ray)\]'"):
        study(Scenario.from_dict(ASKED), seeds=2, executor=executor_at(address))


def test_workers_that_might_compute_something_else_are_refused():
    check_versions("c", {"one": versions()})
    with pytest.raises(ScenarioError, match="c: worker two has numpy 1.0, and here it is"):
        check_versions("c", {"one": versions(), "two": versions() | {"numpy": "1.0"}})
