"""Each extra is installed into an environment without the others, and what needs it runs there."""

import re
import shutil
import subprocess
import sys
import tomllib
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.loopback import Delays, server
from tests.packages.environments import Environment, new_environment

pytestmark = pytest.mark.deep  # installs packages, some of them large

EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"][
    "optional-dependencies"
]
FEW = ("--set", "workload.lengths.num_requests=20", "-q")
SWEEP = ("sweep", "demo", "clients.0.count=1,2", *FEW, "--out", "found")
TEXTS = ("calibrate", "text", str(ROOT / "docs"), "--out", "times.json")
PROFILE = ("--model", "qwen3-0.6b", "--device", "cpu", "--out", "steps.csv", "--repeats", "1")
SMALL = ("--max-num-batched-tokens", "32", "--max-num-seqs", "2", "--max-context", "64")
MEASURE_A_SEARCH = "import mist_sim.calibration.rag as m; print(m.faiss_version())"


@pytest.fixture(scope="module")
def plain(packages, tmp_path_factory):
    """An environment with the wheel alone."""
    room = new_environment(tmp_path_factory.mktemp("plain"))
    room.install(str(packages[1]))
    return room


@pytest.fixture
def user(plain, tmp_path):
    """A copy of the plain environment."""
    shutil.copytree(plain.path, tmp_path / "venv", symlinks=True)
    (tmp_path / "work").mkdir()
    return Environment(tmp_path / "venv", tmp_path / "work")


@pytest.fixture
def install(user):
    """Return a function that installs an extra."""

    def installed(extra: str) -> Environment:
        user.install(*EXTRAS[extra])
        return user

    return installed


@pytest.fixture
def plugin(user):
    """Return a function that installs a package of `plugins/`."""

    def installed(name: str) -> Environment:
        user.install(str(ROOT / "plugins" / name))
        return user

    return installed


def mist(user: Environment, *arguments: str) -> str:
    return user.run("python", "-m", "mist_sim", *arguments)


def test_every_extra_is_tried():
    tried = set(re.findall(r"install\(\"(\w+)\"\)", Path(__file__).read_text("utf-8")))
    elsewhere = {
        "conformance": "python -m conformance, in an environment of its own with vLLM",
        "dev": "make test",
        "docs": "make docs",
        "mutants": "cosmic-ray, by hand: CONTRIBUTING.md",
    }
    assert tried | set(elsewhere) == set(EXTRAS)


def test_report(install):
    user = install("report")
    mist(user, "demo")
    assert "<html" in (user.folder / "mist-demo" / "report.html").read_text("utf-8")


def test_plot(install):
    user = install("plot")
    mist(user, *SWEEP)
    assert (user.folder / "found" / "sweep.png").read_bytes().startswith(b"\x89PNG")


def test_fit(install):
    user = install("fit")
    rows = ["# gpu: h100-sxm", "# model: llama-3.1-8b", "# tensor_parallel_size: 1"]
    rows.append("num_new_tokens,num_context_tokens,num_decodes,context_sum,seconds")
    rows += [f"{n},0,0,0,{0.007 + n * 2e-5}" for n in range(64, 4096, 64)]
    rows += [
        f"0,0,{n},{n * context},{0.006 + n * 1e-5 + n * context * 3e-8}"
        for n in (1, 2, 4, 8, 16, 32, 64)
        for context in (100, 500, 1000, 4000)
    ]
    (user.folder / "steps.csv").write_text("\n".join(rows) + "\n")
    mist(user, "fit", "steps.csv", "--out", "regression.json")
    chosen = "clients.0.predictor={type: regression, path: regression.json}"
    assert '"completed": 20' in mist(user, "run", "demo", "--set", chosen, *FEW, "--json")


def test_search(install):
    user = install("search")
    space = (ROOT / "examples/spaces/chat_pools.yaml").read_text("utf-8")
    (user.folder / "space.yaml").write_text(space)
    said = mist(user, "search", "space.yaml", "--as-is", "--method", "tpe", "--trials", "3", "-q")
    assert "goodput" in said


def test_observe(install):
    user = install("observe")
    with server(Delays(first=0.01, gap=0.001)) as url:
        mist(user, "observe", url, "demo", *FEW, "--model", "any", "--out", "seen")
    assert (user.folder / "seen" / "run.yaml").is_file()


def test_text(install):
    user = install("text")
    mist(user, *TEXTS)
    assert '"tasks"' in (user.folder / "times.json").read_text("utf-8")


def test_rag(install):
    user = install("rag")
    assert re.match(r"\d+\.", user.run("python", "-c", MEASURE_A_SEARCH))


def test_genz(plugin):
    user = plugin("genz")
    assert '"completed": 20' in mist(
        user, "run", "demo", "--set", "clients.0.predictor=genz", *FEW, "--json"
    )


@pytest.mark.skipif(
    sys.platform != "linux", reason="aiconfigurator-core has wheels for Linux alone"
)
def test_silicon(plugin):
    user = plugin("silicon")
    chosen = "clients.0.predictor={type: silicon, engine: vllm}"
    assert '"completed": 20' in mist(user, "run", "demo", "--set", chosen, *FEW, "--json")


def test_torch(plugin):
    user = plugin("torch")
    mist(user, "profile", *PROFILE, *SMALL)
    assert (user.folder / "steps.csv").read_text("utf-8").count("\n") > 3


def test_dask(install):
    user = install("dask")
    words = ("-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", "0")
    with _started(user, *words, "--no-dashboard", "--no-show") as scheduler:
        address = _address(scheduler, r"(tcp://127\.0\.0\.1:\d+)")
        words = ("-m", "distributed.cli.dask_worker", address, "--nthreads", "1")
        with _started(user, *words, "--no-dashboard", "--no-nanny"):
            mist(user, *SWEEP, "--cluster", address.replace("tcp", "dask"))
    assert (user.folder / "found" / "sweep.csv").is_file()


def test_ray(install):
    user = install("ray")
    words = ("-m", "ray.scripts.scripts", "start", "--head", "--block", "--port=6399")
    more = ("--ray-client-server-port=10001", "--include-dashboard=false", "--num-cpus=2")
    with _started(user, *words, *more) as head:
        _address(head, "(Ray runtime started)")
        mist(user, *SWEEP, "--cluster", "ray://127.0.0.1:10001")
    assert (user.folder / "found" / "sweep.csv").is_file()


@contextmanager
def _started(user: Environment, *words: str):
    """Run a Python module of the environment while the block lasts."""
    command = [str(user.scripts / "python"), *words]
    with subprocess.Popen(
        command, cwd=user.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            yield process
        finally:
            process.terminate()


def _address(process: subprocess.Popen, pattern: str) -> str:
    """Return what a process says first that fits a pattern."""
    said = []
    for line in process.stdout:
        said.append(line)
        if match := re.search(pattern, line):
            return match[1]
    raise AssertionError("".join(said))
