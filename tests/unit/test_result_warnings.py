"""Warnings belong to results: a scenario raises each kind, and every verb and format says it."""

import json
import re
import shlex
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import unescape
from pathlib import Path
from typing import Any, ClassVar

import pytest
import yaml
from _pytest.mark import ParameterSet
from click.testing import Result
from typer.testing import CliRunner

from mist_sim import Scenario, Simulation, replicate, simulate, study
from mist_sim.cli.app import app
from mist_sim.core.batch import StepBatch, StepGrowth
from mist_sim.core.result_warnings import (
    KINDS,
    OUT_OF_TIME,
    ResultWarning,
    of_data,
    of_points,
    over_runs,
)
from mist_sim.errors import ScenarioError
from mist_sim.explain import HandBatch, explain_batch
from mist_sim.hardware.predictors import PREDICTORS, PredictorTraits
from mist_sim.metrics.tables import Findings
from mist_sim.report.elements import warning_lines
from mist_sim.report.pictures.picture import Picture
from mist_sim.routers import ROUTERS
from mist_sim.scenario import build
from mist_sim.search import GoodputOptions, find_goodput
from mist_sim.search.comparison import compare
from mist_sim.search.sweeps import sweep
from tests.reference import measured
from tests.reference.predictors import AffinePredictor
from tests.unit.models.test_models_that_differ import UNKNOWN
from tests.unit.models.test_text_parts import MISTRAL3

H100 = {"gpu": "h100-sxm"}
LENGTHS = {
    "type": "synthetic",
    "num_requests": 20,
    "prompt": {"type": "fixed", "tokens": 100},
    "output": {"type": "fixed", "tokens": 10},
}
ONE: dict[str, Any] = {
    "model": "llama-3.1-8b",
    "workload": {"lengths": LENGTHS, "arrivals": {"type": "poisson", "rate": "8 /s"}},
    "clients": [{"name": "llm", **H100}],
    "slo": {"ttft": "60 s", "tpot": "5 s"},
    "assumptions": ["a flag"],
}
LLAMAS: dict[str, dict[str, Any]] = {
    "pcie": {
        "gpu": "l40s",
        "tensor_parallel_size": 2,
        "engine": "vllm-0.19",
        "sampling": {"repetition_penalty": 1.1},
    },
    "drafts": {
        "gpu": "mi300x",
        "speculative_config": {"method": "ngram", "num_speculative_tokens": 3},
    },
    "small": {"gpu": "l4"},
    "tiers": {
        **H100,
        "engine": "vllm-0.19",
        "scheduler": {"type": "continuous"},
        "kv_cache": {"tiers": [{"name": "host", "capacity": "10 GB", "loads_in_step": None}]},
    },
    "bare": {"gpu": "bare.toml"},
    "own": {"gpu": "own.toml"},
    "layers": {**H100, "predictor": {"type": "table", "format": "layer_profile", "path": "."}},
    "steps": {**H100, "predictor": {"type": "table", "format": "steps", "path": "steps.csv"}},
    "told": {**H100, "predictor": {"type": "told"}},
    "adapters": {**H100, "lora": {}},
    "nodes": {**H100, "tensor_parallel_size": 8, "pipeline_parallel_size": 2},
    "layouts": {
        "gpu": "a100-80gb-sxm",
        "tensor_parallel_size": 2,
        "scheduler": {"type": "continuous"},
        "kv_cache": {"enable_prefix_caching": False},
        "resharding": {
            "policy": "ttft_bound",
            "ttft_limit": "2 s",
            "tensor_parallel_size": 1,
            "pipeline_parallel_size": 2,
        },
    },
}
OTHERS: dict[str, dict[str, Any]] = {
    "sampled": {"model": "phi-4", **H100},
    "states": {"model": "nemotron-3-nano-30b-a3b-bf16", **H100, "engine": "vllm-0.24"},
    "experts": {"model": "qwen3-235b-a22b-fp8", **H100, "tensor_parallel_size": 8},
    "unknown": {"model": "approximate:config.json", "gpu": "h200"},
}
NETWORK = {"bandwidth": "400 Gb/s", "latency": "1 ms"}
SIX = dict.fromkeys(("alpha_a", "beta_a", "alpha_f", "beta_f", "alpha_c", "beta_c"), 1)
BUNDLE = {"type": "afd", "attention_workers": 2, "slots": 4, "cycle_s": "1 us", **SIX}
PASSAGES = {
    "type": "rag",
    "passage_tokens": 600,
    "num_candidates": 8,
    "index": {"type": "flat", "num_vectors": 1_000, "dimensions": 8},
    "search": {"cores": 8, "memory": "64 GiB", "memory_bandwidth": "150 GB/s"},
    "reranker": {"model": "ms-marco-minilm-l6", "gpu": "l4"},
}


def llm(**options: Any) -> list[dict[str, Any]]:
    return [{"name": "llm", **H100, **options}]


def load(number: int, arrivals: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    return {"lengths": LENGTHS | {"num_requests": number}, "arrivals": arrivals, **more}


def poisson(rate: float) -> dict[str, Any]:
    return {"type": "poisson", "rate": f"{rate} /s"}


SCENARIOS: dict[str, dict[str, Any]] = {
    "llamas": {
        "clients": [{"name": name, **each} for name, each in LLAMAS.items()],
        "workload": {"trace": {"type": "azure", "path": "trace.csv", "skip": "bad"}},
    },
    "others": {
        "model": "phi-4",
        "clients": [{"name": name, **each} for name, each in OTHERS.items()],
    },
    "images": {
        "model": "qwen3.5-27b",
        "clients": llm(tensor_parallel_size=2, images={}),
        "workload": load(20, poisson(8), images={"sizes": {"1024x768": 1}, "numbers": {1: 1}}),
    },
    "network": {
        "clients": llm(tensor_parallel_size=8, pipeline_parallel_size=2),
        "network": {"topology": "hgx-h100", "nodes": 2, "spans_nodes": True},
    },
    "overload": {
        "clients": llm(scheduler={"max_num_seqs": 1}, max_model_len=105),
        "workload": load(200, poisson(50)),
    },
    "evening": {
        "clients": llm(scheduler={"max_num_seqs": 1}),
        "workload": load(
            300, {"type": "schedule", "at": ["0 s", "100 s"], "rates": ["0.5 /s", "20 /s"]}
        ),
    },
    "outage": {
        "lifecycle": {"failures": [{"clients": ["llm"], "at": "50 ms", "repair": "500 ms"}]}
    },
    "late": {"warmup": "1 h"},
    "uneventful": {
        "lifecycle": {"failures": [{"clients": ["llm"], "at": "1000 s", "repair": "3 s"}]}
    },
    "loose": {"slo": {"ttft": "500 s"}},
    "refused": {"clients": llm(gpu="bare.toml", max_model_len=50), "cost": {}},
    "full": {
        "model": "llama-3.2-1b",
        "workload": load(200, {"type": "closed_loop", "concurrency": 100}),
    },
    "bundle": {
        "clients": [*llm(role="prefill"), {"name": "bundle", **BUNDLE}],
        "network": NETWORK,
        "power": {"pue": 1.2},
    },
    "passages": {
        "clients": [*llm(), {"name": "docs", **PASSAGES}],
        "workload": load(20, poisson(8), pipeline=["rag", "prefill", "decode"]),
    },
    "buyable": {"clients": [{"name": "llm", **LLAMAS["pcie"], "max_model_len": 105}]},
    "hybrids": {
        "clients": [
            {"name": name, "role": f"{name}_heavy", **LLAMAS["pcie"]} for name in ("p", "d")
        ],
        "network": NETWORK,
        "hand_over": {"policy": {"type": "flowing", "tpot": "100 ms"}},
    },
}
"""Small scenarios, each with all that it can raise."""

OF_PCIE = {"assumed host", "engine time", "penalties", "distance"}
RAISED: dict[str, set[str]] = {
    "llamas": OF_PCIE
    | {"spec-only", "acceptance", "longest context", "tier loads", "no prefixes", "architecture"}
    | {"host copies"}
    | {"kernels", "prompt step", "extrapolated", "assumed", "not measured", "adapters", "one node"}
    | {"re-sharding", "front end", "command line", "too short", "left out"},
    "others": {"sampling", "state blocks", "state cache", "older engines", "nearest model"},
    "images": {"images", "sampling", "front end", "command line", "too short"},
    "network": {"across nodes", "too short"},
    "overload": {"overloaded", "unstable", "truncated"},
    "evening": {"overloaded at the end"},
    "outage": {"failures", "start-up", "too short"},
    "late": {"nothing finished"},
    "uneventful": {"never came"},
    "loose": {"limit in seconds"},
    "refused": {"failed requests", "nothing finished", "no price", "architecture"},
    "full": {"front end full"},
    "bundle": {"no energy"},
    "passages": {"cut texts", "too short"},
    "buyable": OF_PCIE | {"truncated", "too short", "front end", "command line"},
    "hybrids": OF_PCIE | {"too short"},
}
"""Kinds that a run of each scenario raises."""

POOLS = ("llamas", "others", "images", "network", "overload", "outage", "refused", "full", "bundle")
OF_WHOLE_RUNS = {
    "too short": "a rate's run says so where the goodput rests on it: too short at goodput",
    "unstable": "the same: unstable at goodput",
    "overloaded": "other rates have other overloads",
    "nothing finished": "no rate is attained then: all missed",
}
OF_RUNS = {
    "too short",
    "unstable",
    "overloaded",
    "overloaded at the end",
    "nothing finished",
    "failed requests",
    "failures",
    "truncated",
    "extrapolated",
    "front end full",
}


@dataclass(frozen=True)
class Verb:
    """A command with results.

    words: NAME stands for the scenario's name. scenarios: that it takes. lacks: kinds of a run that
    its results cannot have, with the reason. has_page: whether `mist report` knows its folder. own:
    kinds that it adds.
    """

    words: str
    scenarios: Sequence[str] = POOLS
    lacks: Mapping[str, str] = field(default_factory=dict)
    has_page: bool = True
    own: frozenset[str] = frozenset()

    def of(self, name: str) -> list[str]:
        return shlex.split(self.words.replace("NAME", name))


VERBS = {
    "run": Verb("run NAME.yaml", [*SCENARIOS]),
    "run, replications": Verb(
        "run NAME.yaml --replications 2 --jobs 1", [*POOLS, "late"], has_page=False
    ),
    "run, vary": Verb("run NAME.yaml --vary seed=1,2 --jobs 1"),
    "compare": Verb("compare NAME.yaml --case a: --case 'b:slo.tpot=6 s' --any-workload --jobs 1"),
    "goodput": Verb(
        "goodput NAME.yaml --rates 4:16 --as-is --tolerance 0.9 --jobs 1",
        [name for name in POOLS if name != "full"],  # its users have no rate
        OF_WHOLE_RUNS,
    ),
    "sweep": Verb("sweep NAME.yaml seed=1,2 --jobs 1"),
    "sweep, goodput": Verb(
        "sweep NAME.yaml clients.0.count=1,2 --goodput --as-is --tolerance 0.9 --jobs 1"
        " --set 'slo.ttft=300 ms'",
        ["images"],
        OF_WHOLE_RUNS,
    ),
    "search": Verb(
        "search space-NAME.yaml --jobs 1", [n for n in POOLS if n not in ("refused", "bundle")]
    ),
    "sliders": Verb(
        "sliders NAME.yaml --as-is --tolerance 0.9 --jobs 1 --chunks 512",
        ["hybrids"],
        OF_WHOLE_RUNS,
        has_page=False,
    ),
    "plan": Verb(
        "plan NAME.yaml --tp 2 --max-gpus 2 --designs together --as-is --jobs 1",
        ["buyable"],
        own=frozenset({"plan"}),
    ),
    "bestserve": Verb(
        "bestserve NAME.yaml --instances 1 --jobs 1",
        ["buyable"],
        OF_WHOLE_RUNS | {"truncated": "its own simulators cut no answer"},
        has_page=False,
        own=frozenset({"bestserve"}),
    ),
    "explain": Verb(
        "explain NAME.yaml --decodes 1 --context 10",
        [name for name in POOLS if name != "bundle"],
        dict.fromkeys(
            [*OF_RUNS, "front end", "no prefixes", "left out", "start-up"],
            "one step is timed: no run is made, and no trace is read",
        ),
        has_page=False,
    ),
}
"""Commands that run what a scenario describes."""


OWN = {
    "run one.yaml --vary model=llama-3.1-8b,none --jobs 1": {"failed runs"},
    "run gap.yaml --replications 2 --jobs 1": {"alike"},
    "run one.yaml --set clients.0.power_limit=500W": {"power cap"},
    "run one.yaml --set model=towers.json": {"towers"},
    "explain one.yaml --set model=qwen3-30b-a3b --set clients.0.data_parallel_size=8 --set "
    "clients.0.enable_expert_parallel=true --set clients.0.all2all_backend=nixl_ep "
    "--decodes 8 --context 9": {"expert exchange"},
    "run one.yaml --set 'clients.0.speculative_config={method: eagle3, num_speculative_tokens: 2, "
    "acceptance_rate: [0.7, 0.5]}'": {"draft rates", "draft head"},
    "run one.yaml --set model=llama-3.1-70b --set clients.0.tensor_parallel_size=2 --set "
    "engine=vllm-0.14 --set workload.lengths.prompt.tokens=2000": {"too small", "between releases"},
    "run pair.yaml --set router=prefix_affinity --set 'workload.lengths={type: prefix_repetition, "
    "num_requests: 200, num_prefixes: 1, prefix_len: 600, suffix: {type: fixed, tokens: 100}, "
    "output: {type: fixed, tokens: 10}}'": {"idle replicas"},
    "run pair.yaml --set router=session_affinity": {"blind router"},
    "run one.yaml --set slo.e2el=1s --set 'workload.lengths={type: mix, num_requests: 300, "
    "classes: {short: {share: 9, prompt: {type: fixed, tokens: 100}, output: {type: fixed, "
    "tokens: 10}}, "
    "long: {prompt: {type: fixed, tokens: 100}, output: {type: fixed, tokens: 300}}}}' "
    "--set slo.attainment=0.7": {"pooled"},
    "run one.yaml --set 'workload.priorities={0: 0.5, 1: 0.5}'": {"unread"},
    "run one.yaml --set 'workload.arrivals={type: closed_loop, concurrency: 2, think_time: 1 s}'": {
        "waves"
    },
    "run one.yaml --set workload.lengths.num_requests=400 --set 'workload.arrivals={type: "
    "closed_loop, concurrency: 100, think_time: {type: exponential, mean: 20 s}}'": {
        "common start"
    },
    "compare tight.yaml --designs --jobs 1": {"no room", "uneven"},
    "compare pair.yaml --designs --jobs 1": {"design"},
    "goodput one.yaml --as-is --rates 4:16 --jobs 1": {"all attained"},
    "goodput one.yaml --as-is --set 'slo.ttft=1 ms' --jobs 1": {"all missed", "lone requests"},
    "goodput queue.yaml --as-is --tolerance 0.1 --jobs 1": {"unstable at goodput", "overloaded"},
    "goodput few.yaml --as-is --tolerance 0.1 --jobs 1": {"too short at goodput"},
    "goodput few.yaml --most-requests 1000 --tolerance 0.02 --jobs 1": {"undecided"},
    "goodput uneventful.yaml --as-is --rates 4:16 --jobs 1": {"never came"},
    "goodput gap.yaml --as-is --attainment 1 --jobs 1": {"not monotone", "failures"},
    "bestserve lost.yaml --instances 1 --check 1 --jobs 1": {"full failed"},
    "reshard --model llama-3.1-8b --gpu a100-80gb-sxm --gpus 4 --input-len 2000 --output-len 100": {
        "closed form"
    },
    "afd tail.csv --slots 64,65536 --model deepseek-v3 --gpu h200 --network-bandwidth '50 GB/s'"
    " --ffn-cards 16": {"bundle memory", "bundle shares", "heavy tail"},
}
"""Kinds of one verb alone, with a command that raises them."""

OWN_SCENARIOS: dict[str, dict[str, Any]] = {
    "one": {},
    "tight": {
        "clients": llm(gpu="l4", tensor_parallel_size=4, scheduler={"max_num_seqs": 2}),
        "workload": load(30, poisson(50)),
        "slo": {"ttft": "1 ms", "tpot": "1 s"},
    },
    "pair": {"clients": llm(count=2), "slo": {"ttft": "1 s", "tpot": "100 ms"}},
    "queue": {
        "clients": llm(scheduler={"max_num_seqs": 1}),
        "workload": load(1000, poisson(10)),
        "slo": {"ttft": "12 s"},
    },
    "few": {"clients": llm(scheduler={"max_num_seqs": 1}), "slo": {"ttft": "200 ms"}},
    "gap": {  # a request of few a second comes while the engine is away
        "workload": load(8, {"type": "constant", "rate": "1 /s"}),
        "lifecycle": {"failures": [{"clients": ["llm"], "at": "1.3 s", "repair": "500 ms"}]},
        "slo": {"ttft": "300 ms"},
    },
    "lost": {
        "router": {"type": "lost"},
        "workload": load(200, poisson(8)),
        "slo": {"ttft": "100 ms"},
    },
}
OF_FILES, OF_PYTHON = {"older", "shared load", "failed when measured"}, {"not in parallel"}
SHEET = """
memory = "180 GB"
memory_bandwidth = "8 TB/s"
flops.bf16 = "2250 TFLOP/s"
interconnect = {kind = "nvlink", bandwidth = "900 GB/s"}
host_bandwidth = "64 GB/s"
power = "1000 W"
"""


@dataclass(frozen=True)
class ToldPredictor:
    """A predictor of one's own that says what it assumes."""

    always_positive: ClassVar[bool] = True
    times: ClassVar[AffinePredictor] = AffinePredictor(needs_longest_context=False)
    traits: ClassVar[PredictorTraits] = PredictorTraits(assumed=("clock", "measured kernels: ssm"))
    model: object
    cluster: object

    def step_time(self, batch: StepBatch) -> float:
        return self.times.step_time(batch)

    def run(self, batch: StepBatch, growth: StepGrowth, num_steps: int) -> Any:
        return self.times.run(batch, growth, num_steps)


@dataclass
class LostRouter:
    """A router of one's own that finds no candidate."""

    def choose(self, request: object, stage: object, candidates: object) -> int:
        raise ScenarioError("router: lost")


@pytest.fixture(scope="module", autouse=True)
def place(tmp_path_factory):
    """A folder with all files; parts of one's own have their names for as long."""
    folder = tmp_path_factory.mktemp("warned")
    measured.write_steps(folder)
    measured.write_layer_profile(folder, 32)
    rows = [f"2023-11-16 18:17:{k // 10:02}.{k % 10}0,9000,{20 + k}" for k in range(30)]
    rows.append("2023-11-16 18:17:03.00,9000,none")
    tail = [50 * (1009 * k % 3001 / 3001) ** (-1 / 2.4) for k in range(1, 3001)]  # Pareto's law
    lengths = [f"2023-11-16 18:15:46.00,100,{int(each)}" for each in tail]
    (folder / "config.json").write_text(json.dumps(UNKNOWN | {"hyena_layers": [1, 2]}))
    towers = {"text_config": MISTRAL3["text_config"], "vision_config": {"hidden_size": 1024}}
    (folder / "towers.json").write_text(json.dumps(towers))
    (folder / "bare.toml").write_text(SHEET)
    (folder / "own.toml").write_text('name = "own"\nbased_on = "b200"\nmemory = "256 GiB"\n')
    for name, lines in {"trace": rows, "tail": lengths}.items():
        text = "\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *lines, ""])
        (folder / f"{name}.csv").write_text(text)
    for name, changes in (SCENARIOS | OWN_SCENARIOS).items():
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(ONE | changes))
        space = {"scenario": f"{name}.yaml", "objectives": ["p99_ttft", "num_gpus"]}
        space |= {"vary": {"clients.0.count": [1, 2]}}
        (folder / f"space-{name}.yaml").write_text(yaml.safe_dump(space))
    parts = ((PREDICTORS, "told", ToldPredictor), (ROUTERS, "lost", LostRouter))
    for registry, name, part in parts:
        registry.register(name)(part)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("COLUMNS", "120")
        yield folder
    for registry, name, _ in parts:
        del registry._classes[name]


def invoked(*words: str) -> Result:
    found = CliRunner().invoke(app, words)
    assert found.exit_code == 0, found.stderr or repr(found.exception)
    return found


def call(*words: str) -> str:
    """Return what a command prints, in one line."""
    found = invoked(*words)
    return " ".join(f"{found.stdout} {found.stderr}".split())


def scenario(name: str) -> Scenario:
    return Scenario.load(f"{name}.yaml")


def kinds_of(summary: Mapping[str, Any]) -> set[str]:
    return {each["kind"] for each in summary["warnings"]}


def unsaid(summary: Mapping[str, Any], text: str) -> set[str]:
    """Return the kinds of which no warning stands in a text."""
    text = re.sub("<svg.*?</svg>", "", text, flags=re.DOTALL)
    text = " ".join(unescape(text).split())
    said = {w["kind"] for w in summary["warnings"] if " ".join(w["text"].split())[1:60] in text}
    return kinds_of(summary) - said


def _cases() -> Iterator[ParameterSet]:
    """Yield verbs and scenarios: `run` has all, others the richest and the last, or it is deep."""
    for verb, each in VERBS.items():
        for name in each.scenarios:
            is_deep = verb != "run" and name not in (each.scenarios[0], each.scenarios[-1])
            yield pytest.param(verb, name, marks=[pytest.mark.deep] if is_deep else [])


@pytest.mark.parametrize(("verb", "name"), list(_cases()))
def test_every_verb_tells_what_a_scenario_raises(verb, name):
    asked, folder = VERBS[verb], Path(f"{verb} of {name}")
    printed = call(*asked.of(name), "-q", "--out", str(folder))
    (file,) = folder.glob("*.json")
    written = json.loads(file.read_text())
    assert (RAISED[name] | asked.own) - set(asked.lacks) - kinds_of(written) == set()
    assert unsaid(written, printed) == set()
    if asked.has_page:
        page = folder.with_suffix(".html")
        call("report", str(folder), "--out", str(page))
        assert unsaid(written, page.read_text()) == set()
    if name == asked.scenarios[-1]:
        shown = json.loads(invoked(*asked.of(name), "-q", "--json").stdout)
        assert shown["warnings"] == written["warnings"]


@pytest.mark.parametrize(("words", "kinds"), OWN.items(), ids=OWN)
def test_every_verb_tells_kinds_of_its_own(words, kinds):
    told = json.loads(invoked(*shlex.split(words), "--json").stdout)
    assert kinds - kinds_of(told) == set()
    assert unsaid(told, call(*shlex.split(words))) == set()


def test_every_kind_is_raised():
    of_verbs = [each.own for each in VERBS.values()]
    raised = set().union(
        *RAISED.values(), *OWN.values(), *of_verbs, OF_FILES, OF_PYTHON, {OUT_OF_TIME.name}
    )
    assert raised == set(KINDS)


@pytest.fixture(scope="module")
def ran(place):
    """The folder of a run, and its summary."""
    folder = place / "ran"
    call("run", "llamas.yaml", "-q", "--out", str(folder))
    return folder, json.loads((folder / "summary.json").read_text())


@pytest.mark.parametrize("more", [(), ("--beside", "again"), ("--over", "again")])
def test_pictures_of_a_folder_tell_them(ran, more):
    folder, summary = ran
    if more:
        shutil.copytree(folder, "again", dirs_exist_ok=True)
    call("plot", str(folder), "latency", *more, "--out", "plots.html", "--force")
    assert unsaid(summary, Path("plots.html").read_text()) == set()
    printed = call(
        "plot", str(folder), "latency", *more, "--format", "svg", "--out", "l.svg", "--force"
    )
    assert unsaid(summary, printed) == set()
    drawn = " ".join(re.sub(r"<[^>]*>", " ", Path("l.svg").read_text()).split())
    assert [kind for kind in kinds_of(summary) if kind not in drawn] == []


def test_a_timeline_tells_them(ran):
    folder, summary = ran
    assert unsaid(summary, call("timeline", str(folder), "--out", "timeline.json")) == set()
    told = json.loads(Path("timeline.json").read_text())["otherData"]["warnings"]
    assert told == [each["text"] for each in summary["warnings"]]


def test_folders_of_an_older_version_say_so(ran):
    folder, summary = ran
    shutil.copytree(folder, "older")
    del summary["warnings"]
    Path("older/summary.json").write_text(json.dumps(summary))
    text = "These files are of an older version"
    assert text in call("plot", "older", "latency", "--format", "pdf", "--out", "older.pdf")
    call("report", "older", "--out", "older.html")
    assert text in " ".join(Path("older.html").read_text().split())


def test_a_validation_tells_them(place):
    measured_run = {
        "name": "ours",
        "engine": "vLLM",
        "provenance": "made up",
        "scenario": "images.yaml",
        "summary": {"mean_ttft_ms": 20.0},
    }
    (place / "measured").mkdir()
    shutil.copy("images.yaml", "measured/images.yaml")
    Path("measured/run.yaml").write_text(yaml.safe_dump(measured_run))
    summary = simulate(scenario("images")).summary
    assert unsaid(summary, call("validate", "measured")) == set()


def test_the_demo_tells_them():
    printed = call("demo", "-q", "--out", "demo")
    summary = json.loads(Path("demo/summary.json").read_text())
    assert "front end" in kinds_of(summary)
    assert unsaid(summary, printed) == set()
    assert unsaid(summary, Path("demo/report.html").read_text()) == set()


FOUND: dict[str, Callable[[Scenario], Findings]] = {
    "simulate": simulate,
    "replicate": lambda it: replicate(it.changed({"replications": 2}), jobs=1),
    "study": lambda it: study(it, vary={"seed": [1, 2]}, jobs=1),
    "compare": lambda it: compare({"a": it, "b": it}, jobs=1),
    "find_goodput": lambda it: find_goodput(it, GoodputOptions(rates=(4, 8), as_is=True), jobs=1),
    "sweep": lambda it: sweep(it, {"seed": [1, 2]}, jobs=1),
    "explain": lambda it: explain_batch(it, HandBatch(decodes=1, context=10)),
}


PICTURES = {"simulate": "latency", "study": "p99_ttft_ms"}


@pytest.mark.parametrize("name", FOUND)
def test_findings_in_python_tell_them(name, capsys):
    found = FOUND[name](scenario("images"))
    assert {"images", "sampling"} <= kinds_of(found.summary)
    found.show()
    assert unsaid(found.summary, capsys.readouterr().out) == set()
    plain = re.sub(r"<[^>]*>", "", found._repr_html_())
    assert unsaid(found.summary, plain) == set()
    page = found.report(f"{name}.html").read_text()
    assert unsaid(found.summary, page) == set()
    if name in PICTURES:
        caption = " ".join(found.plot(PICTURES[name]).caption)
        assert caption.startswith("Warnings: ")
        assert [kind for kind in kinds_of(found.summary) if kind not in caption] == []


PNGS = {
    "explain images.yaml --decodes 1 --context 10": "roofline.png",
    "sweep images.yaml seed=1,2 --jobs 1": "sweep.png",
    "search space-images.yaml --jobs 1": "front.png",
    "compare images.yaml --case a: --case b:clients.0.count=2 --slo-plane --num-rates 2 --points 2"
    " --rates 4:8 --jobs 1": "slo_plane.png",
}


@pytest.mark.parametrize(("words", "name"), PNGS.items(), ids=PNGS.values())
def test_pictures_of_findings_name_them(words, name, monkeypatch):
    captions = []
    write = Picture.as_bytes

    def written(picture: Picture, form: str) -> bytes:
        captions.append(" ".join(picture.caption))
        return write(picture, form)

    monkeypatch.setattr(Picture, "as_bytes", written)
    folder = Path(f"with {name}")
    call(*shlex.split(words), "-q", "--out", str(folder))
    assert (folder / name).is_file()
    (caption,) = captions
    assert "qwen3.5-27b on" in caption
    told = caption.partition("Warnings: ")[2]
    assert all(kind in told for kind in ("images", "sampling"))


def test_a_plane_of_limits_tells_of_its_runs():
    words = "compare overload.yaml --case a: --case b:clients.0.count=2 --jobs 1 --json"
    plane = "--slo-plane --num-rates 2 --points 2 --rates 4:8"
    shown = json.loads(invoked(*f"{words} {plane}".split()).stdout)
    told = [each for each in shown["warnings"] if each["kind"] == "truncated"]
    assert any(each["text"].startswith("plane of limits: 200 answers were cut") for each in told)


def test_studies_that_cannot_be_sent_say_so():
    lock = threading.Lock()  # which no other process can have

    def made(seed: int) -> Simulation:
        with lock:
            return build(scenario("one"))

    assert "not in parallel" in kinds_of(study(made, seeds=2, jobs=2).summary)


def test_a_warning_comes_back_from_json():
    told = ResultWarning(KINDS["assumed host"], "A host.", "It takes 3 ms.", ("a", "b"))
    assert of_data({"warnings": json.loads(json.dumps([told.data]))}) == (told,)


def test_warnings_of_older_files_are_read():
    (told,) = of_data({})
    assert told.kind is KINDS["older"]
    assert [str(each) for each in of_data({"warnings": ["slow"]})] == ["slow"]
    (told,) = of_data({"warnings": {"a": ["slow"]}})
    assert told.of == ("a",)


def test_points_share_warning_and_failed_ones_come_first():
    slow, lost = ResultWarning(KINDS["unstable"], "slow"), ResultWarning(KINDS["failed runs"], "no")
    found = of_points({"a": [slow], "b": [slow, lost]})
    assert [(each.text, each.of) for each in found] == [("no", ("b",)), ("slow", ())]


def test_runs_with_other_seeds_say_in_how_many():
    slow = ResultWarning(KINDS["unstable"], "Slow.")
    (told,) = over_runs([[slow], [], [slow]])
    assert told.text == "In 2 of 3 runs; in the first of them: Slow."
    assert over_runs([[slow], [slow]]) == (slow,)


def test_many_parts_are_told_by_their_scenarios():
    parts = [f"{name}: {part}" for name in ("apart", "hybrid") for part in ("p-0", "p-1", "d-0")]
    said = ResultWarning(KINDS["uneven"], "Uneven.", of=("together", *parts))
    assert warning_lines({"warnings": [said.data]}) == ["together, apart, hybrid: Uneven."]
