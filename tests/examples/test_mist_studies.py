"""MIST's studies in examples/mist_studies: designs, prices, sizes of spaces, and small runs."""

import importlib
import re
import subprocess
import sys

import pytest

from mist_sim import Scenario, ScenarioError
from tests.conftest import ROOT

FOLDER = ROOT / "examples" / "mist_studies"
STUDIES = ("summarization", "reasoning", "code")


@pytest.fixture(scope="module")
def modules():
    """The study's own modules, which lie beside it, as Python finds them when it runs."""
    sys.path.insert(0, str(FOLDER))
    try:
        names = ("designs", "measuring", "sizes", "study")
        yield {name: importlib.import_module(name) for name in names}
    finally:
        sys.path.remove(str(FOLDER))


def run(*arguments):
    return subprocess.run(
        [sys.executable, str(FOLDER / "study.py"), *arguments],
        capture_output=True,
        text=True,
        check=False,
    )


def test_every_design_has_eight_gpus_and_a_name_of_its_own(modules):
    designs = modules["designs"]
    found = [*designs.together(), *designs.apart()]
    assert all(sum(n * e.num_gpus for n, e in each.pools) == 8 for each in found)
    assert len({each.name for each in found}) == len(found) == 291
    # apart, with sizes a and b: 7 + 3 + 1 + 3 + 3 + 1 + 1 + 1 + 1 ways; nine pairs of kinds
    assert sum(each.answers is not None for each in found) == 9 * 21 == 189


def test_a_gpu_costs_what_the_cheapest_machine_asks_that_holds_its_engine(modules):
    designs = modules["designs"]
    prices, whole = designs.Prices(), designs.Prices(whole=True)
    per_gpu = [prices.of(designs.Engine("l40s", tp)) for tp in (1, 2, 4, 8)]
    assert per_gpu == pytest.approx([1.861, 10.49264 / 4, 10.49264 / 4, 30.13118 / 8])
    assert whole.of(designs.Engine("l40s", 1)) == pytest.approx(30.13118 / 8)
    assert prices.of(designs.Engine("h100-sxm", 1)) == pytest.approx(55.04 / 8)
    six_and_two = modules["study"].STUDIES["summarization"].paper
    assert six_and_two.dollars(prices) == pytest.approx(6 * 27.44705 / 8 + 2 * 1.861)


def test_a_price_file_that_is_missing_is_named_with_its_source():
    done = run("code", "--prices", "nowhere.csv")
    assert done.returncode == 2
    assert re.match(r"nowhere.csv is missing: .* instances.vantage.sh; .*\n$", done.stderr)
    assert not done.stdout


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "has no gpu"),
        ("gpu,price\nl40s,1\n", "has no machine"),
        ("gpu,machine,num_gpus,on_demand,date\nl40s,g6e,few,1,2025\n", "got 'few' and '1'"),
        ("gpu,machine,num_gpus,on_demand,date\nl40s,g6e,1,-3,2025\n", "got '1' and '-3'"),
        ("gpu,machine,num_gpus,on_demand,date\nl40s,g6e,0,3,2025\n", "got '0' and '3'"),
    ],
)
def test_a_file_that_is_no_list_of_prices_is_refused(text, problem, modules, tmp_path):
    path = tmp_path / "prices.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ScenarioError, match=problem):
        modules["designs"].Prices(path)


@pytest.mark.parametrize("option", ["--jobs", "--requests", "--long", "--every"])
@pytest.mark.parametrize("value", ["0", "-3", "x", "1.5"])
def test_numbers_of_a_study_are_at_least_one(option, value, modules, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["study.py", "code", option, value])
    with pytest.raises(SystemExit) as left:
        modules["study"].main()
    assert left.value.code == 2
    assert f"{option}: must be a whole number >= 1, got '{value}'" in capsys.readouterr().err


@pytest.mark.parametrize("name", STUDIES)
def test_scenarios_have_the_lengths_of_table_3(name, modules):
    """Within 2 %, as the presets (tests/golden/test_mist_lengths.py); no other file is needed."""
    own, preset = (
        Scenario.load(each).workload.lengths for each in (FOLDER / f"{name}.yaml", _preset(name))
    )
    assert (own.prompt, own.output) == (preset.prompt, preset.output)
    question = modules["study"].STUDIES[name]
    expected = {"summarization": 218, "reasoning": 6818, "code": 1088}[name]
    assert question.mean_answer == pytest.approx(expected, rel=0.02)


def _preset(name):
    return f"mist-{name}"


def test_reasoning_is_known_to_be_unstable_before_anything_runs(modules):
    """Eight H100s decode at most 7.8 times the answers of a second; 8 /s are asked for."""
    designs, study = modules["designs"], modules["study"]
    question = study.STUDIES["reasoning"].loaded(designs.Prices(), 100)
    eight = [designs.Design((8, designs.Engine(sku, 1))) for sku in designs.SKUS]
    bounds, left_out = question.valid(eight)
    assert list(bounds) == eight
    assert not left_out
    assert max(bounds.values()) < question.rate


def test_two_l40s_hold_no_long_context_of_code_in_bf16(modules):
    """The paper's best design for code takes weights and KV entries of 8 bits."""
    designs, measuring, study = (modules[name] for name in ("designs", "measuring", "study"))
    question = study.STUDIES["code"].loaded(designs.Prices(), 100)
    assert list(question.valid([question.paper])[0]) == [question.paper]
    wide = {"model": "qwen3-32b", "clients.0.kv_cache.kv_cache_dtype": "auto"}
    with pytest.raises(ScenarioError, match="max_model_len: must be <="):
        measuring.build(question.make(question.paper).changed(wide))


def test_faster_gpus_emit_more_under_overload_and_the_papers_design_is_overloaded(modules):
    """Summaries at 8 /s: H100 above A100 and L40S, as in the study."""
    designs, measuring, study = (modules[name] for name in ("designs", "measuring", "study"))
    question = study.STUDIES["summarization"].loaded(designs.Prices(), 120)
    chunks = designs.Batching("chunked", 4096)
    found = {
        sku: measuring.measure(
            question, designs.Design((8, designs.Engine(sku, 1)), batching=chunks)
        )
        for sku in designs.SKUS
    }
    h100, a100, l40s = found.values()
    assert h100.throughput > 1.8 * max(a100.throughput, l40s.throughput)
    assert h100.keeps(question)
    assert not a100.keeps(question)
    assert not l40s.keeps(question)


def test_layouts_of_a_simple_rule_are_those_counted_by_hand(modules):
    """Engines of one or two GPUs that fill eight, alike on both sides: 7 + 3 of each kind."""
    sizes = modules["sizes"]
    rules = sizes.Rules(
        (1, 2), (1,), True, "all", "all", "nothing", "a100-80gb-sxm", "equal", "equal", False
    )
    assert sizes.layouts("qwen3-4b", rules) == (6, 30)
    assert sizes.layouts("qwen3-32b", rules._replace(memory="weights")) == (5, 23)
    assert sizes.layouts("qwen3-4b", rules._replace(pipeline=(1, 8), tensor=(1,)))[0] == 3
    assert sizes.layouts("qwen3-14b", rules._replace(pipeline=(1, 8), tensor=(1,)))[0] == 6


@pytest.mark.deep
def test_no_rule_of_enumeration_gives_the_three_sizes(modules):
    sizes = modules["sizes"]
    for rules in sizes.all_rules():
        found = {model: sizes.layouts(model, rules) for model in sizes.PAPER}
        assert not sizes.batchings(found, tuple(sizes.PAPER)), rules


@pytest.mark.deep
@pytest.mark.parametrize("name", STUDIES)
def test_a_winner_gives_as_many_tokens_for_a_dollar_as_every_baseline(name, tmp_path):
    few = ["--every", "40", "--requests", "60", "--long", "400"]
    done = run(name, *few, "--out", str(tmp_path), "--jobs", "2")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.partition("At the highest rate")[2]
    gains = [float(each) for each in re.findall(r" (\d+\.\d\d) x ", lines)]
    assert len(gains) >= 2
    assert min(gains) >= 1
    assert {path.name for path in (tmp_path / name).iterdir()} >= {
        "at_8_per_s.csv",
        "at_goodput.csv",
    }
