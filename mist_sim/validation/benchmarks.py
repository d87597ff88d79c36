"""Files of measured benchmarks: each becomes a scenario, and its figures a row beside its bar.

Three forms are read: a table (CSV) with a `vllm serve` line, the line of its load generator and
figures in each row; and what `vllm bench serve --save-result` and GuideLLM write, which say the
load and the figures, but not the server.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mist_sim.bounds import TABLE_BYTES
from mist_sim.core import result_warnings as kinds
from mist_sim.core.result_warnings import ResultWarning
from mist_sim.errors import MistError, ScenarioError, brief, require_known
from mist_sim.hardware.setting import Setting
from mist_sim.inputs import object_in, read_csv
from mist_sim.metrics import evidence
from mist_sim.metrics.expected_errors import Range, expected_errors, expected_ranges
from mist_sim.metrics.load import OPEN, Load
from mist_sim.metrics.other_names import as_ours
from mist_sim.metrics.sensitivity import Sensitivity
from mist_sim.scenario import Scenario, simulate
from mist_sim.scenario.from_vllm.commands import from_vllm
from mist_sim.traces.arrivals import TraceArrivals

if TYPE_CHECKING:
    import pandas as pd

    from mist_sim.metrics import Result

FIGURES: Mapping[str, str] = {  # as `vllm bench serve` and summaries call them, and whose bar holds
    "mean_ttft_ms": "ttft",
    "p99_ttft_ms": "ttft",
    "mean_tpot_ms": "tpot",
    "p99_tpot_ms": "tpot",
    "mean_itl_ms": "tpot",
    "mean_e2el_ms": "e2el",
    "request_throughput": "throughput",
    "output_throughput": "throughput",
}
TEXTS = ("source", "serve", "bench", "gpu", "engine")


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """A measured run.

    where: its file and line, for messages; label: the same, short. source: who measured it; rows of
    the same source in the package's evidence are left out of its bars. serve, bench: command lines
    of the server and of the load generator; without the latter `workload` and `requests` (tokens of
    prompts and answers) say the load. num_failed: requests that failed when measured, which are no
    part of the figures and the load. gpu: of the catalog. engine: version of vLLM, such as
    vllm-0.19; empty: the newest. figures: by the names of `FIGURES`. overrides: keys of the
    scenario that the user sets.
    """

    where: str
    label: str
    source: str
    serve: str
    gpu: str
    engine: str
    bench: str = ""
    workload: Mapping[str, Any] = field(default_factory=dict)
    requests: Sequence[tuple[int, int]] = ()
    num_failed: int = 0
    figures: Mapping[str, float]
    overrides: Mapping[str, Any] = field(default_factory=dict)


def read_benchmarks(
    path: Path, serve: str = "", gpu: str = "", engine: str = ""
) -> list[Benchmark]:
    """Return the measured runs of a file.

    serve, gpu, engine: what a row or file does not say. Raises ScenarioError for files of another
    form, with the line, the rule and the value.
    """
    if path.suffix in (".yaml", ".yml"):
        raise ScenarioError(
            f"{path}: a file of measured runs must be a CSV table or a load generator's JSON, got "
            f"YAML; mist run {path} checks and simulates a scenario"
        )
    if path.suffix != ".json":
        return list(_of_table(path, serve, gpu, engine))
    if not serve or not gpu:
        raise ScenarioError(
            f"{path}: a result of a load generator does not say which server it was: give "
            "--serve 'vllm serve ...' and --gpu NAME"
        )
    found = object_in(path, TABLE_BYTES)
    server: dict[str, Any] = {"source": path.stem, "serve": serve, "gpu": gpu, "engine": engine}
    if "benchmarks" in found:
        return [
            Benchmark(
                where=f"{path}: benchmarks.{place}",
                label=f"benchmarks.{place}",
                **server,
                **_of_guidellm(each, path, place),
            )
            for place, each in enumerate(found["benchmarks"])
        ]
    return [Benchmark(where=str(path), label=path.stem, **server, **_of_bench(found, path))]


def _of_table(path: Path, serve: str, gpu: str, engine: str) -> Iterator[Benchmark]:
    rows = read_csv(path, words=TEXTS)
    known = (*TEXTS, *FIGURES)
    for name in rows.columns:
        require_known(name, known, f"{path}: unknown column")
    if rows.empty:
        raise ScenarioError(f"{path}: holds no measured run")
    given = {"serve": serve, "gpu": gpu, "engine": engine, "source": path.stem, "bench": ""}
    for line, row in zip(rows.index, rows.to_dict("records"), strict=True):
        where = f"{path}, line {line}"
        said = {name: str(row[name]) for name in TEXTS if isinstance(row.get(name), str)}
        texts: dict[str, Any] = given | said
        for name in ("serve", "bench", "gpu"):
            if not texts[name]:
                raise ScenarioError(f"{where}: {name} must not be empty; fill the column {name}")
        yield Benchmark(where=where, label=f"line {line}", **texts, figures=_figures(row, where))


def _figures(row: Mapping[Any, Any], where: str) -> dict[str, float]:
    found = {}
    for name in FIGURES:
        value = row.get(name)
        if value is None or value == "" or (isinstance(value, float) and math.isnan(value)):
            continue
        if isinstance(value, (bool, str)) or not 0 < float(value) < math.inf:
            raise ScenarioError(
                f"{where}: {name} must be a finite number > 0, got {brief(value)}; leave it empty "
                "if it was not measured"
            )
        found[name] = float(value)
    if not found:
        raise ScenarioError(f"{where}: no figure is measured; give one of {', '.join(FIGURES)}")
    return found


def _of_bench(found: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Return load and figures of a result of `vllm bench serve` (or SGLang's or AIPerf's)."""
    ours = as_ours(dict(found))
    number = int(_number(ours, "completed", path))
    if "input_lens" in found and "output_lens" in found:
        requests = list(zip(found["input_lens"], found["output_lens"], strict=True))
    else:
        prompts, answers = (
            max(1, round(_number(ours, f"total_{side}_tokens", path) / number))
            for side in ("input", "output")
        )
        requests = [(prompts, answers)] * number
    rate, users = found.get("request_rate", "inf"), found.get("max_concurrency")
    arrivals: Any = "all_at_once"
    if users and int(users) < number:
        arrivals = {"type": "closed_loop", "concurrency": int(users)}
    elif math.isfinite(float(rate)):
        arrivals = {"type": "poisson", "rate": f"{float(rate):g} /s"}
        if (burstiness := found.get("burstiness")) is not None:  # a result of vLLM's own
            arrivals["stretched"] = True
            if burstiness != 1:
                arrivals |= {"type": "gamma", "burstiness": float(burstiness)}
    return {
        "workload": {"arrivals": arrivals},
        "requests": requests,
        "num_failed": _failed(found.get("failed")),
        "figures": _figures(ours, str(path)),
    }


def _failed(value: object) -> int:
    """Return how many requests failed; 0 where it is not said, as in results of older releases."""
    return value if isinstance(value, int) else 0


_GUIDELLM = {  # its metrics, of answered requests; ITL there is a mean of each request: vLLM's TPOT
    "mean_ttft_ms": "time_to_first_token_ms",
    "mean_tpot_ms": "inter_token_latency_ms",
    "request_throughput": "requests_per_second",
    "output_throughput": "output_tokens_per_second",
}


def _of_guidellm(found: Any, path: Path, place: int) -> dict[str, Any]:
    """Return load and figures of one benchmark of GuideLLM's report."""
    where = f"{path}: benchmarks.{place}"
    try:
        metrics = found["metrics"]
        figures = {
            ours: metrics[theirs]["successful"]["mean"]
            for ours, theirs in _GUIDELLM.items()
            if theirs in metrics
        }
        prompts, answers = (
            metrics[f"{side}_token_count"]["successful"] for side in ("prompt", "output")
        )
        lengths = (max(1, round(prompts["mean"])), max(1, round(answers["mean"])))
        number = int(prompts["count"])
        failed = _failed(metrics.get("request_totals", {}).get("errored"))
        strategy = (found.get("config") or found.get("args"))["strategy"]
        kind = strategy["type_"]
    except (KeyError, TypeError, AttributeError) as error:
        raise ScenarioError(
            f"{where}: not a benchmark of GuideLLM: {error} is missing; give its JSON report"
        ) from None
    arrivals: Any = "all_at_once"
    if kind in ("concurrent", "synchronous"):
        arrivals = {"type": "closed_loop", "concurrency": int(strategy.get("streams") or 1)}
    elif kind in ("constant", "poisson"):
        arrivals = {"type": kind, "rate": f"{float(strategy['rate']):g} /s"}
    elif kind != "throughput":
        raise ScenarioError(
            f"{where}: strategy must be synchronous, concurrent, throughput, constant or poisson, "
            f"got {brief(kind)}"
        )
    return {
        "workload": {"arrivals": arrivals},
        "requests": [lengths] * number,
        "num_failed": failed,
        "figures": _figures(figures, where),
    }


def _number(found: Mapping[str, Any], name: str, path: Path) -> float:
    value = found.get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
        raise ScenarioError(
            f"{path}: {name} must be a number > 0, got {brief(value)}; give what vllm bench serve "
            "--save-result or GuideLLM wrote"
        )
    return float(value)


def scenario_of(run: Benchmark, folder: Path) -> Scenario:
    """Return the scenario of a measured run. folder: for its lengths, until it is simulated.

    Raises ScenarioError with the place of the row.
    """
    commands = [run.serve, *([run.bench] if run.bench else [])]
    engine = {"clients.0.engine": run.engine} if run.engine else {}
    own = {**engine, **run.overrides}
    try:
        found = from_vllm(commands, gpu=run.gpu, engine=run.engine or None, overrides=own)
        keys = {**found.overrides, **engine}
        if not run.bench:
            file = folder / "lengths.csv"
            lines = "".join(f"{prompt},{answer}\n" for prompt, answer in run.requests)
            file.write_text(f"num_prefill_tokens,num_decode_tokens\n{lines}")
            keys["workload"] = {
                **run.workload,
                "trace": {"type": "lengths_csv", "path": str(file)},
            }
        return Scenario.from_dict({}, keys | dict(run.overrides))
    except MistError as error:
        raise ScenarioError(f"{run.where}: {error}") from None


def scores(run: Benchmark) -> Iterator[dict[str, Any]]:
    """Simulate a measured run, and yield a row for each figure (columns of `table`).

    error: simulated / measured - 1. low, high: of the bar, where measured / simulated - 1 is to
    lie, as in `mist run`; None without one. warnings: those of the run.
    """
    with tempfile.TemporaryDirectory() as folder:
        scenario = scenario_of(run, Path(folder))
        try:
            result = simulate(scenario)
        except MistError as error:
            raise ScenarioError(f"{run.where}: {error}") from None
    summary: Mapping[str, Any] = result.summary
    bars: Mapping[str, Any] = next(iter(summary["expected_errors"].values()), {})
    known: Mapping[str, Any] = next((bar for bar in bars.values() if bar), {})
    load = Load(known.get("load") or "", known.get("arrivals") or "")
    at = Sensitivity(**known["sensitivity"]) if "sensitivity" in known else None
    of_clients = dict.fromkeys(result.settings, at) if at else None
    expected = expected_errors(result.settings, load, of_clients, run.source)
    ranges = expected_ranges({**summary, "expected_errors": expected})
    other = {m: bar["other"] for of in expected.values() for m, bar in of.items() if bar}
    settings = next(iter(result.settings.values()), {})
    described = dict.fromkeys(("release", "model", "kernel"), "")
    if isinstance(here := settings.get("tpot"), Setting):
        kernel = f"{evidence.kernel_words(here)}, {evidence.architecture_words(here)}"
        described = {"release": here.release, "model": here.model, "kernel": kernel}
    is_drawn = scenario.workload.arrivals.plugin is not TraceArrivals
    draws = _draws(result, load if is_drawn else None, has_own_lengths=bool(run.bench))
    told = [*result.warnings, *_several(scenario), *_failures(run)]
    for name, value in run.figures.items():
        ours, kind = float(summary[name]), FIGURES[name]
        bar: dict[str, Any] = dict.fromkeys(("low", "high", "inside", "distance"))
        if (found := _with_draws(ranges[kind], draws.get(name, 0.0))) is not None:
            inside = found.low <= round(value / ours - 1, 3) <= found.high
            distance = len(other.get(kind, other.get("tpot", ())))
            bar = {**found._asdict(), "inside": inside, "distance": distance}
        yield {
            "source": run.source,
            "gpu": run.gpu,
            **described,
            "load": ", ".join(filter(None, load[::-1])),
            "label": run.label,
            "metric": name,
            "measured": value,
            "simulated": ours,
            "error": ours / value - 1,
            **bar,
            "warnings": [each.about(run.label).data for each in told],
        }


_BLOCKS, _RESAMPLES = 20, 200  # of a run's requests in order, whose times depend on each other
_NINE_IN_TEN = 1.645  # standard deviations


def _draws(result: Result, load: Load | None, *, has_own_lengths: bool) -> dict[str, float]:
    """Return how far figures of a run go by the draw of its requests: relative deviations.

    Requests a second by the gaps between arrivals; tokens by the lengths as well where the measured
    run drew its own; latencies by resampled blocks of requests. load: None where a trace says when
    requests come.
    """
    rows = result.requests.sort_values("arrival_time")
    found = {}
    if load and load.arrivals == OPEN and len(rows) > 1:
        gaps = np.diff(rows["arrival_time"])
        rate = _variation(gaps) / math.sqrt(len(gaps))
        lengths = _variation(rows["num_output_tokens"]) if has_own_lengths else 0.0
        found["request_throughput"] = rate
        found["output_throughput"] = math.hypot(rate, lengths / math.sqrt(len(rows)))
    rng = np.random.Generator(np.random.PCG64(0))
    picks = rng.integers(_BLOCKS, size=(_RESAMPLES, _BLOCKS))
    for kind in ("ttft", "tpot", "e2el"):
        blocks = np.array_split(rows[kind].dropna().to_numpy(float), _BLOCKS)
        if min(map(len, blocks)) > 1:
            again = [np.concatenate([blocks[k] for k in pick]) for pick in picks]
            found[f"mean_{kind}_ms"] = _variation([each.mean() for each in again])
            found[f"p99_{kind}_ms"] = _variation([np.percentile(each, 99) for each in again])
    if "mean_tpot_ms" in found:  # the same gaps, pooled
        found["mean_itl_ms"] = found["mean_tpot_ms"]
    return found


def _variation(values: Any) -> float:
    """Return the coefficient of variation; 0 for values that are all 0."""
    mean = float(np.mean(values))
    return float(np.std(values)) / mean if mean else 0.0


def _with_draws(bar: Range | None, draw: float) -> Range | None:
    """Return a bar with the draws of both runs, measured and simulated, in it."""
    if bar is None:
        return None
    middle, half = (bar.low + bar.high) / 2, (bar.high - bar.low) / 2
    wide = math.hypot(half, _NINE_IN_TEN * math.sqrt(2) * draw)
    return Range(middle - wide, middle + wide)


def _several(scenario: Scenario) -> Iterator[ResultWarning]:
    """Yield a warning where several servers share the load of a benchmark."""
    number = sum(client.count for client in scenario.clients)
    if number > 1:
        yield ResultWarning(
            kinds.SHARED_LOAD,
            f"The server's text starts {number} replicas, and all serve the load here. If the "
            "benchmark ran against one of them, say so: --set clients.0.count=1.",
            brief=f"{number} replicas serve the load, as the server's text says.",
        )


def _failures(run: Benchmark) -> Iterator[ResultWarning]:
    """Yield a warning where requests of the measured run failed."""
    if not run.num_failed:
        return
    done = len(run.requests)
    brief = f"{run.num_failed:,} of {run.num_failed + done:,} requests failed when measured."
    yield ResultWarning(
        kinds.FAILED_WHEN_MEASURED,
        f"{brief} The {done:,} others alone are simulated, at the rate of all, so that the load "
        "may have been another one: measure again without failures.",
        brief=brief,
    )


def turned(low: float, high: float) -> tuple[float, float]:
    """Return the ends of the error (simulated / measured - 1) of a bar of measured / simulated."""
    return 1 / (1 + high) - 1, 1 / (1 + low) - 1 if low > -1 else math.inf


def table(figures: pd.DataFrame, *by: str) -> pd.DataFrame:
    """Return number, median and 90th percentile of errors, and how their bars did, by group.

    figures: rows of `scores`. span: from the 5th to the 95th percentile of measured / simulated.
    width, widest: median and largest of the bars.
    """
    import pandas as pd

    figures = figures.assign(
        size=figures["error"].abs(),
        width=(figures["high"] - figures["low"]).astype(float),
        ratio=1 / (1 + figures["error"]),
        held=figures["inside"].astype(float),
    )
    groups = figures.groupby([*by, "metric"], dropna=False, sort=False)
    ratios = groups["ratio"]
    return pd.DataFrame(
        {
            "number": groups.size(),
            "median": groups["size"].median(),
            "nine in ten": groups["size"].quantile(0.9),
            "signed": groups["error"].median(),
            "barred": groups["width"].count() / groups.size(),
            "inside": groups["held"].mean(),
            "width": groups["width"].median(),
            "widest": groups["width"].max(),
            "span": ratios.quantile(0.95) - ratios.quantile(0.05),
        }
    )
