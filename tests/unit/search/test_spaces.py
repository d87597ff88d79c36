"""A search of a space: the exhaustive winner is never lost, whatever is pruned, sampled, killed."""

from __future__ import annotations

import importlib.util
import json
from math import inf, nan
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from mist_sim import Scenario, ScenarioError
from mist_sim.cli.app import app
from mist_sim.rng import Streams
from mist_sim.search.spaces import SearchOptions, Space, read_space, search_space
from mist_sim.search.spaces.objectives import OBJECTIVES, constraints_of, objectives_of
from mist_sim.search.spaces.space import Configuration, values_of
from mist_sim.search.spaces.space_result import dominates, front, rate_to_beat
from mist_sim.search.sweeps import GOOD, At, Sweep
from mist_sim.studies.built import Built
from mist_sim.studies.decided_question import digest
from mist_sim.studies.task import Done, InTurn
from tests.reference.random_spaces import ASKED, random_space, space
from tests.reference.scenarios import of_profile
from tests.refusals import refused

TOLERANCE = 0.02
needs_optuna = pytest.mark.skipif(
    importlib.util.find_spec("optuna") is None,
    reason="Optuna is not installed: pip install 'mist-sim[search]'",
)


def found(asked, method="exhaustive", jobs=1, **options):
    options = {"as_is": True, **options}
    return search_space(asked, SearchOptions(method=method, **options), jobs=jobs)


def best_value(result):
    row = result.front[0]
    return row["figures"][result.objectives[0]]


def is_feasible(asked):
    try:
        found(asked, thorough=True, tolerance=0.5)
    except ScenarioError as error:
        if "no configuration keeps the constraints" in str(error):
            return False
        raise
    return True


def check_nothing_is_lost(asked):
    """Check that a race finds what the goodputs of all configurations show."""
    if not is_feasible(asked):
        with pytest.raises(ScenarioError, match="no configuration keeps the constraints"):
            found(asked)
        return
    whole = found(asked, thorough=True)
    raced = found(asked)
    assert best_value(raced) >= best_value(whole) * (1 - TOLERANCE)
    for row, other in zip(whole.rows, raced.rows, strict=True):
        goodput = row["figures"].get("goodput", nan)
        if row["bound"] is not None and goodput == goodput:
            assert goodput <= row["bound"], row["name"]
        if other["status"] in ("front", "kept"):
            assert other["figures"] == row["figures"]


def test_a_race_finds_what_all_goodputs_show():
    check_nothing_is_lost(random_space(1, counts=[1, 2]))


@pytest.mark.deep
@pytest.mark.parametrize("number", range(50))
def test_a_race_never_loses_the_winner(number):
    check_nothing_is_lost(random_space(number))


def test_the_order_in_which_configurations_are_tried_changes_no_winner():
    one = found(space(vary={"clients.0.count": [1, 2, 3]}))
    other = found(space(vary={"clients.0.count": [3, 1, 2]}), side_by_side=1)
    assert one.front[0]["name"] == other.front[0]["name"]
    assert best_value(one) == best_value(other)


# ---------------------------------------------------------------------- fronts


def test_a_front_is_what_nobody_is_ahead_of():
    objectives = objectives_of(["goodput", "num_gpus"])
    rng = Streams(0).generator("fronts")
    figures = [
        {"goodput": float(rng.integers(1, 9)), "num_gpus": float(rng.integers(1, 9))}
        for _ in range(40)
    ]
    several = [Configuration(k, str(k), {}, figures=each) for k, each in enumerate(figures)]
    ends = front(several, objectives)
    for each, values in zip(several, figures, strict=True):
        ahead = [
            other
            for other in figures
            if other["goodput"] >= values["goodput"]
            and other["num_gpus"] <= values["num_gpus"]
            and other != values
        ]
        assert (each in ends) == (not ahead)


def test_who_serves_the_rate_to_beat_is_dominated_by_no_rival():
    objectives = objectives_of(["goodput_per_usd", "goodput_per_gpu", "num_gpus"])
    rng = Streams(1).generator("fronts")

    def drawn():
        return {"num_gpus": float(rng.integers(1, 5)), "usd_per_hour": float(rng.uniform(1, 9))}

    def figures(rate, known):
        scaled = {each.name: rate / each.scale(known) for each in objectives[:2]}
        return scaled | {"num_gpus": known["num_gpus"]}

    for _ in range(50):
        rivals = [SimpleNamespace(rate=float(rng.uniform(1, 9)), known=drawn()) for _ in range(4)]
        known = drawn()
        rate = rate_to_beat(known, rivals, objectives)
        others = [figures(rival.rate, rival.known) for rival in rivals]
        above = figures(rate * 1.001 + 1e-9, known)
        assert not any(dominates(other, above, objectives) for other in others)
        if rate > 0:
            below = figures(rate * 0.999, known)
            assert any(dominates(other, below, objectives) for other in others)


# ---------------------------------------------------------------------- rows


def test_a_configuration_that_cannot_be_is_a_row_and_the_others_go_on():
    asked = space("p99_ttft", vary={"model": ["llama-3.1-8b", "llama-3.1-70b", "no-such-model"]})
    result = found(asked)
    assert [row["status"] for row in result.rows] == ["front", "failed", "failed"]
    assert "does not fit" in result.rows[1]["reason"]
    assert result.rows[1]["num_runs"] == 0
    assert "no-such-model" in result.rows[2]["reason"]


class Fails(InTurn):
    """Fails in one task, as a worker without memory might."""

    def stream(self, tasks):
        for position, done in enumerate(super().stream(tasks)):
            yield Done(done.task, MemoryError("none left")) if position == 1 else done


def test_a_run_that_fails_is_a_row_and_the_others_go_on():
    result = search_space(space("p99_ttft"), executor=Fails())
    assert [row["status"] for row in result.rows].count("failed") == 1
    assert "none left" in next(r["reason"] for r in result.rows if r["status"] == "failed")


def test_budgets_exclude_before_anything_runs():
    result = found(space("p99_tpot", {"max_gpus": 1, "max_usd_per_hour": 2}))
    excluded = [row for row in result.rows if row["status"] == "excluded"]
    assert [row["num_runs"] for row in excluded] == [0, 0, 0]
    assert {row["num_requests"] for row in result.rows} == {0, 60}
    assert set(excluded[0]["broken"]) == {"max_usd_per_hour"}
    assert set(excluded[1]["broken"]) == {"max_gpus", "max_usd_per_hour"}
    assert result.front[0]["values"] == {"clients.0.gpu": "l40s", "clients.0.count": 1}


def test_a_latency_that_is_asked_for_is_that_of_a_run():
    scenario = Scenario.from_dict(ASKED)
    value = scenario.changed({"clients.0.count": 2})
    from mist_sim import simulate

    expected = simulate(value).summary["p99_ttft_ms"]
    result = found(space("p99_ttft", vary={"clients.0.count": [2, 3]}))
    assert result.rows[0]["figures"]["p99_ttft"] == expected
    limit = {"p99_ttft": f"{expected * 0.999!r} ms"}
    limited = found(space("num_gpus", limit, vary={"clients.0.count": [2, 3]}))
    assert limited.rows[0]["status"] == "excluded"


def test_the_cheapest_that_attains_ends_the_search():
    asked = space(
        "usd_per_hour",
        {"attainment": 0.9},
        {"clients.0.count": [1, 2, 3, 4]},
        ASKED | {"slo": {"ttft": "2 s"}},
    )
    result = found(asked, side_by_side=1)
    assert result.front[0]["values"] == {"clients.0.count": 1}
    assert {row["status"] for row in result.rows[2:]} == {"behind"}


def test_a_miss_of_a_run_that_ended_early_is_an_upper_bound():
    """It misses after 20 of 60 requests, when the others may still be good."""
    asked = space(
        "usd_per_hour",
        {"attainment": 0.9},
        {"clients.0.count": [1, 8]},
        ASKED | {"workload": of_profile(60, "200 /s")},
    )
    row = found(asked).rows[0]
    (trial,) = row["trials"]
    assert not trial["is_whole"]
    assert f": at most {100 * trial['attainment']:.1f} % good at 200 /s" in row["reason"]


@pytest.mark.parametrize(("rate", "is_said"), [("100 /s", True), ("1 /s", False)])
def test_an_attainment_beside_a_goodput_says_at_which_rate_it_is(rate, is_said):
    asked = space(
        ["usd_per_hour", "goodput"],
        {"attainment": 0.9},
        {"clients.0.count": [1, 2]},
        ASKED | {"workload": of_profile(60, rate)},
    )
    sentence = found(asked).sentence
    told = "at each one's own goodput: count=1 serves less than the workload's 100 /s. To"
    assert (told in sentence) == is_said
    assert ("Attainment" in sentence) == is_said


def test_designs_are_those_of_compare():
    asked = space("p99_tpot", vary={"clients.0.count": [2]}, designs=("together", "apart"))
    names = [row["values"]["design"] for row in found(asked).rows]
    assert "together 512" in names
    assert "1 prefill + 1 decode" in names


@pytest.mark.parametrize("objectives", [["p99_tpot"], ["usd_per_hour", "p99_tpot"]])
def test_a_figure_that_no_run_has_is_told_and_no_traceback(objectives):
    lengths = {
        "type": "synthetic",
        "num_requests": 5,
        "prompt": {"type": "fixed", "tokens": 9},
        "output": {"type": "fixed", "tokens": 1},
    }
    scenario = ASKED | {"workload": ASKED["workload"] | {"lengths": lengths}}
    with pytest.raises(ScenarioError, match="all 2 configurations failed.*has no p99_tpot"):
        found(space(objectives, vary={"clients.0.count": [1, 2]}, scenario=scenario))


# ---------------------------------------------------------------------- bad input


test_constraints_that_make_no_sense = refused(
    constraints_of,
    ({"p50_ttft": "1 s", "p99_ttft": "500 ms"}, "contradicts p99_ttft: 0.5 s"),
    ({"p99_ttft": "1 s", "p99_e2el": "500 ms"}, "ends after its first token"),
    ({"max_gpus": 0}, "must be a number > 0"),
    ({"max_gpus": True}, "must be a number > 0"),
    ({"p99_ttft": 500}, "needs a number and a unit"),
    ({"attainment": 2}, r"attainment must be in \(0, 1\]"),
    ({"max_gpu": 4}, "did you mean 'max_gpus'"),
)


def test_nothing_that_is_feasible_says_which_constraint_excludes_most():
    with pytest.raises(ScenarioError, match="of 4, p99_ttft excludes 4; relax the first"):
        found(space("p99_tpot", {"p99_ttft": "1 us"}))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"vary": {}}, "it has nothing to try"),
        ({"vary": {"slo.ttft": ["1 s", "2 s"]}}, "another slo is another question"),
        ({"designs": ("aprt",)}, "did you mean 'apart'"),
        ({"cases": {"a": {"clients.0.count": 1}}}, "is in vary too"),
    ],
)
def test_a_space_that_makes_no_sense(change, problem):
    given = {"vary": {"clients.0.count": [1, 2]}} | change
    with pytest.raises(ScenarioError, match=problem):
        Space(
            scenario=Scenario.from_dict(ASKED),
            constraints=constraints_of({}),
            objectives=objectives_of("goodput"),
            **given,
        )


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("1:4", [1, 2, 3, 4]),
        ("1:8:3", [1, 4, 7]),
        ("128:2048:x4", [128, 512, 2048]),
        ("0.5:0.7:0.1", [0.5, 0.6, 0.7]),
        ("10:30:10 /s", ["10 /s", "20 /s", "30 /s"]),
    ],
)
def test_ranges(text, values):
    assert values_of("vary x", text) == values


@pytest.mark.parametrize("text", ["4:1", "1:9:0", "1:9:x1", "0:9:x2", "a:b", "1:1e9", "", "5"])
def test_ranges_without_an_end(text):
    with pytest.raises(ScenarioError, match="vary x: must"):
        values_of("vary x", text)


test_options_that_make_no_search = refused(
    lambda options: SearchOptions(**options),
    ({"method": "tpee"}, "did you mean 'tpe'"),
    ({"trials": 5}, "trials has no effect with method exhaustive"),
    ({"side_by_side": 0}, "side_by_side must be in"),
    ({"tolerance": 0.0}, "tolerance must be in"),
)


# ---------------------------------------------------------------------- journals, the command


SPACE = """
scenario: chat.yaml
vary: {clients.0.gpu: [h100-sxm, l40s], clients.0.count: 1:2}
constraints: {max_gpus: 2}
objectives: [goodput_per_usd, num_gpus]
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    from mist_sim.scenario.format import yaml_text

    monkeypatch.chdir(tmp_path)
    (tmp_path / "chat.yaml").write_text(yaml_text.dump(ASKED))
    (tmp_path / "space.yaml").write_text(SPACE)
    return tmp_path


def mist(*words):
    result = CliRunner().invoke(app, list(words))
    return result.exit_code, result.stdout, result.stderr


def test_what_the_command_writes(folder):
    options = ("--as-is", "--jobs", "1")
    code, out, err = mist("search", "space.yaml", *options, "--out", "r", "--explain", "1")
    assert code == 0, err
    assert "Row 1: gpu=h100-sxm count=2" in out
    data = json.loads((folder / "r" / "search.json").read_text())
    assert data["statuses"]["front"] == len(data["front"])
    import pandas as pd

    table = pd.read_parquet(folder / "r" / "search.parquet")
    assert list(table["seed"]) == [0, 0, 0, 0]
    assert len(pd.read_csv(folder / "r" / "search.csv")) == 4
    best = Scenario.load(folder / "r" / "best.yaml")
    assert best == read_space("space.yaml").configurations()[data["front"][0]].scenario
    code, out, err = mist("search", "r", "--explain", "1")
    assert code == 0, err
    assert "Row 1: gpu=h100-sxm count=2" in out
    code, out, err = mist("search", "r", "--explain", "9")
    assert (code, out) == (2, "")
    assert "0 to 3, or its name" in err


INFEASIBLE = SPACE.replace("max_gpus: 2", "p99_ttft: 1 us, max_gpus: 1").replace(
    "[goodput_per_usd, num_gpus]", "[p99_ttft, num_gpus]"
)


def test_a_search_in_vain_writes_what_was_tried(folder):
    (folder / "space.yaml").write_text(INFEASIBLE)
    code, out, err = mist("search", "space.yaml", "--jobs", "1", "--out", "r", "--quiet")
    assert (code, out) == (2, "")
    assert "All that was tried is in r: " in err
    assert "search.csv" in err
    import pandas as pd

    table = pd.read_csv(folder / "r" / "search.csv")
    assert list(table["status"]) == ["excluded"] * 4
    assert list(table["reason"].str.contains("more than 1")) == [False, True, False, True]
    assert not list(folder.glob(".*partial"))
    assert mist("report", "r", "--out", "r.html")[0] == 0
    code, out, _ = mist("search", "r", "--explain", "1")
    assert (code, "2 GPUs, more than 1" in out) == (0, True)


def test_a_search_in_vain_without_a_run_leaves_the_next_one_alone(folder):
    (folder / "space.yaml").write_text(SPACE.replace("max_gpus: 2", "max_usd_per_hour: 0.01"))
    assert mist("search", "space.yaml", "--as-is", "--jobs", "1", "--out", "r/s")[0] == 2
    (folder / "space.yaml").write_text(SPACE)
    options = ("--as-is", "--jobs", "1", "--force")
    assert mist("search", "space.yaml", *options, "--out", "r/s")[0] == 0


def test_names_of_any_length_leave_picture_its_width():
    pytest.importorskip("matplotlib")
    from mist_sim.report.pictures.findings import front_picture

    def row(number, status, name):
        figures = {"goodput": 1.0 + number, "num_gpus": 1.0 + number}
        return {"number": number, "status": status, "name": name, "figures": figures}

    def drawn(name):
        rows = [row(0, "front", name), row(1, "front", name), row(2, "kept", name)]
        summary = {"objectives": ["goodput", "num_gpus"], "statuses": {}, "rows": rows}
        return front_picture(summary).as_bytes("png")

    assert drawn("a" * 200) == drawn("a")


def test_a_killed_search_goes_on_and_ends_same(folder):
    asked, options = read_space("space.yaml"), SearchOptions(as_is=True)
    whole = search_space(asked, options, jobs=1, journal="whole.jsonl")
    lines = (folder / "whole.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "half.jsonl").write_bytes(b"".join(lines[: len(lines) // 2]) + lines[-1][:40])

    def resumed(asked, options):
        return search_space(asked, options, jobs=1, journal="half.jsonl", resume=True)

    assert resumed(asked, options).summary == whole.summary
    content = (folder / "half.jsonl").read_bytes()
    assert len(content.splitlines()) == len(lines)
    looser = SearchOptions(as_is=True, tolerance=0.05)
    with pytest.raises(ScenarioError, match="another study, where 'options.tolerance'"):
        resumed(asked, looser)
    other = space("goodput", vary={"clients.0.count": [1, 2]})
    with pytest.raises(ScenarioError, match="is that of another study"):
        resumed(other, options)
    assert (folder / "half.jsonl").read_bytes() == content


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[1]", "must be a mapping"),
        ("scenario: chat.yaml", "objectives is required"),
        ("scenario: chat.yaml\nobjectives: [goodputt]", "did you mean 'goodput'"),
        ("scenario: nowhere.yaml\nobjectives: [goodput]", "no scenario file"),
        ("clients: []", "is a key of a scenario; name its file under scenario. Known: "),
        ("scenario: chat.yaml\nobjectives: [goodput]\nvary: {router: random}", "FIRST:LAST"),
        ("scenario: 5\nobjectives: [goodput]", "must be a file, a preset or a mapping"),
        ("scenario: chat.yaml\nobjectives: goodput\ncases: {a: 1}", "must be a mapping of keys"),
        ("scenario: chat.yaml\nobjectives: goodput\ndesigns: {a: 1}", "must be a list of words"),
    ],
)
def test_files_that_are_no_space(folder, text, problem):
    (folder / "bad.yaml").write_text(text)
    code, out, err = mist("search", "bad.yaml", "--out", "r")
    assert (code, out) == (2, "")
    assert problem in err
    assert not (folder / "r").exists()


def test_optuna_is_named_where_it_is_missing(folder, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "optuna", None)
    code, _, err = mist("search", "space.yaml", "--method", "tpe", "--as-is", "--jobs", "1")
    assert code == 2
    assert "pip install 'mist-sim[search]'" in err


LATENCY = SPACE.replace("[goodput_per_usd, num_gpus]", "[p99_ttft]")


@pytest.mark.parametrize(
    ("text", "words", "problem"),
    [
        (LATENCY, ("--thorough",), "--thorough has no effect without a goodput"),
        (LATENCY, ("--tolerance", "0.1"), "--tolerance has no effect without a goodput"),
        (LATENCY, ("--as-is",), "--as-is has no effect without a goodput"),
        (SPACE, ("--explain", "9"), "0 to 3, or its name"),
        (SPACE, ("--explain", "1", "--json"), "--explain has no effect with --json"),
    ],
)
def test_options_without_effect_are_refused_before_anything_runs(folder, text, words, problem):
    (folder / "space.yaml").write_text(text)
    code, out, err = mist("search", "space.yaml", "--out", "r", "--jobs", "1", *words)
    assert (code, out) == (2, "")
    assert problem in err
    assert not (folder / "r").exists()


def test_folder_of_results_takes_no_options_of_search(folder):
    (folder / "r").mkdir()
    for words in (["--thorough"], ["--set", "slo.ttft=1 s"], ["--out", "s"], ["--jobs", "1"]):
        code, _, err = mist("search", "r", "--explain", "1", *words)
        assert code == 2
        assert f"{words[0]} has no effect with a folder" in err


def test_attainment_that_sweep_does_not_show_is_refused(folder):
    words = ("chat.yaml", "clients.0.count=1:2", "--metric", "p99_ttft_ms", "--attainment", "0.5")
    code, _, err = mist("sweep", *words)
    assert code == 2
    assert "--attainment has no effect with --metric p99_ttft_ms" in err


@pytest.mark.parametrize("method", ["search", "sweep"])
def test_a_journal_knows_the_files_that_vary(folder, method):
    from mist_sim.search.sweeps import sweep

    file, vary = folder / "my.toml", {"clients.0.gpu": ["my.toml", "l40s"]}

    def run(**more):
        if method == "sweep":
            return sweep(Scenario.from_dict(ASKED), vary, jobs=1, journal="j.jsonl", **more)
        asked = space("p99_ttft", vary=vary)
        return search_space(asked, SearchOptions(), jobs=1, journal="j.jsonl", **more)

    file.write_text('based_on = "h100-sxm"\n')
    run()
    file.write_text('based_on = "h200"\n')
    with pytest.raises(ScenarioError, match="is that of another study"):
        run(resume=True)


@needs_optuna
@pytest.mark.parametrize("method", ["tpe", "nsga2"])
def test_methods_that_learn_try_as_many_as_they_may_and_repeat(method):
    asked = random_space(3, "p99_ttft")
    one = found(asked, method, trials=10)
    assert sum(row["status"] != "not tried" for row in one.rows) == 10
    assert found(asked, method, trials=10).summary == one.summary


class Remembers(InTurn):
    """Does no task twice, in any search."""

    def __init__(self):
        self.known = {}

    def stream(self, tasks):
        for task in tasks:
            name = digest(task.run, task.arguments)
            if name not in self.known:
                (done,) = super().stream([task])
                self.known[name] = done.answer
            yield Done(task, self.known[name])


def wide_space(objective):
    """Return a space of 128 configurations."""
    vary = {
        "clients.0.gpu": ["h100-sxm", "l40s", "a100-80gb-sxm", "h200"],
        "clients.0.count": [1, 2, 3, 4],
        "clients.0.tensor_parallel_size": [1, 2],
        "clients.0.scheduler.max_num_batched_tokens": [256, 512, 2048, 8192],
    }
    return space(objective, vary=vary)


@needs_optuna
@pytest.mark.deep
@pytest.mark.parametrize(
    "objective", ["p99_ttft", "p99_tpot", "p90_e2el", "p50_itl", "energy_per_output_token_j"]
)
def test_tpe_finds_nearly_best_in_fifth_of_runs(objective):
    asked, executor = wide_space(objective), Remembers()
    whole = search_space(asked, SearchOptions(), executor=executor)
    fifth = search_space(asked, SearchOptions(method="tpe"), executor=executor)
    assert sum(row["status"] != "not tried" for row in fifth.rows) == 26
    assert best_value(fifth) <= best_value(whole) / 0.98


@pytest.mark.parametrize("source", ["at rate", "at goodput"])
def test_every_objective_is_a_figure_of_a_run_also_of_a_scenario_without_prices(source):
    assert "cost" not in ASKED
    names = [each.name for each in OBJECTIVES.values() if each.source == source]
    for row in found(space(names, vary={"clients.0.count": [1, 2]})).rows:
        assert all(0 < row["figures"][name] < inf for name in names)


def test_prices_of_the_scenario_stay_as_they_are():
    name, vary = "cost_per_million_output_tokens_usd", {"clients.0.count": [1]}
    spot, catalog = (
        found(space(name, scenario=ASKED | more, vary=vary)).rows[0]["figures"][name]
        for more in ({"cost": {"price": "spot"}}, {})
    )
    assert 0 < spot < catalog


def test_a_price_of_the_scenario_is_that_of_its_own_gpu():
    """A price among the values is that of every point."""
    clients = [{"name": "llm", "gpu": "h100", "gpu_price": "1 $/h"}]
    gpus = {"clients.0.gpu": ["h100-sxm", "l40s"]}
    for vary, is_own in ((gpus, True), (gpus | {"clients.0.gpu_price": ["1 $/h"]}, False)):
        asked = space("usd_per_hour", vary=vary, scenario=ASKED | {"clients": clients, "cost": {}})
        found = {each.values["clients.0.gpu"]: each.found for each in asked.configurations()}
        prices = {gpu: Built(each).gpu_price for gpu, each in found.items()}
        assert prices["h100-sxm"] == 1.0
        assert (prices["l40s"] == 1.0) is not is_own
        assert found["h100-sxm"].assumptions == ()
        told = "clients.0.gpu_price, 1 $/h as given, is of h100-sxm alone; other GPUs cost what "
        assert found["l40s"].assumptions == (f"{told}the catalog says.",) * is_own


@pytest.mark.parametrize("verb", ["run", "sweep", "goodput"])
def test_space_where_scenario_is_needed_is_one_message(verb, mist, tmp_path):
    (tmp_path / "space.yaml").write_text(
        "scenario: demo\nvary: {clients.0.count: [1, 2]}\nobjectives: [goodput_per_gpu]\n"
    )
    more = ["clients.0.count=1,2"] if verb == "sweep" else []
    code, _, err = mist(verb, "space.yaml", *more)
    assert code == 2
    assert err == (
        "error: space.yaml: is a search space, which mist search takes; a scenario is needed here, "
        "such as the one under its key scenario\n"
    )


@pytest.mark.parametrize(
    ("key", "metric", "said"),
    [
        ("workload.arrivals.rate", GOOD, "Up to rate=5 /s, 90 % of the requests are good."),
        (
            "workload.arrivals.rate",
            "p99_ttft_ms",
            "p99_ttft_ms goes from 0.95 at rate=5 /s to 0.5 at rate=20 /s. It never ",
        ),
        ("clients.0.count", GOOD, "90 % of the requests are good at count=5 /s."),
        ("clients.0.count", "p99_ttft_ms", "p99_ttft_ms is best at count=20 /s: 0.5. It never "),
    ],
)
def test_the_least_load_is_not_called_best(key, metric, said):
    points = [At({key: f"{rate} /s"}, mean, mean, mean) for rate, mean in ((5, 0.95), (20, 0.5))]
    points.insert(1, At({key: "10 /s"}, 0.7, 0.7, 0.7))
    found = Sweep((key,), tuple(points), metric, "less" if metric != GOOD else "more", 0.9, "")
    assert found.sentence.startswith(said)
