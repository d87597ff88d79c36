"""Results as people see them: in terminals of any width, in notebooks, and in a Python prompt."""

import re
from io import StringIO

import pytest
from rich.console import Console

from mist_sim import Scenario, replicate, simulate
from mist_sim.metrics import Replications, Result
from mist_sim.report.elements import pairs, percent
from mist_sim.report.replications import replications_table
from mist_sim.report.run import results_table
from tests.commands import exit_code
from tests.reference.scenarios import changed, of_profile

BASE = {
    "model": "llama-3.1-8b",
    "workload": of_profile(40, "30 /s"),
    "clients": [{"name": "llm", "gpu": "h100-sxm", "count": 3}],
    "router": "random",
    "slo": {"ttft": "200 ms", "tpot": "25 ms"},
}
NUMBER = re.compile(r"(?<![\w.,/-])\d[\d,.]*(?![\w-])")


def text(body: object, width: int) -> str:
    console = Console(width=width, file=StringIO(), highlight=False)
    console.print(body)
    return console.file.getvalue()


def numbers(printed: str) -> list[str]:
    return sorted(NUMBER.findall(printed))


def section(printed: str, title: str) -> str:
    """Return what stands below a title, without empty lines."""
    lines = printed.split(f"{title}\n")[1].split("\n")
    return "\n".join(lines[: next((k for k, line in enumerate(lines) if not line.strip()), None)])


@pytest.fixture(scope="module")
def result() -> Result:
    return simulate(changed(BASE))


@pytest.fixture(scope="module")
def replications() -> Replications:
    return replicate(changed(BASE, replications=3), jobs=1)


# --- widths -----------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [40, 50, 60, 80, 120])
def test_every_number_is_there_whatever_the_width(result, replications, width):
    for table in (results_table(result), replications_table(replications)):
        wide, narrow = text(table, 200), text(table, width)
        assert numbers(narrow) == numbers(wide)
        assert max(map(len, narrow.splitlines())) <= width
        assert "…" not in narrow


def test_explanations_go_first(result):
    latency = {w: section(text(results_table(result), w), "Latency, ms") for w in (50, 80)}
    assert "arrival to first token" in latency[80]
    assert "arrival to first token" not in latency[50]
    assert latency[50].count("\n") == latency[80].count("\n"), "no line of numbers is broken"


@pytest.mark.parametrize("separator", [",", ";"])
def test_a_unit_stays_with_its_number(separator):
    rows = [("cost", "1.25", f"${separator} GPUs at " + "a long remark " * 6)]
    lines = text(pairs(rows), 80).splitlines()
    assert lines[0].split() == ["cost", "1.25", "$"]
    assert lines[1].strip().startswith("GPUs at a long remark")


def test_long_names_do_not_break_a_table():
    name = "a" * 100
    printed = text(results_table(simulate(changed(BASE, clients__0__name=name))), 80)
    assert max(map(len, printed.splitlines())) <= 80
    assert numbers(printed) == numbers(text(results_table(simulate(changed(BASE))), 80))


@pytest.mark.parametrize("family", ["models", "gpus"])
def test_lists_keep_their_numbers(capsys, monkeypatch, family):
    printed = []
    for width in ("50", "120"):
        monkeypatch.setenv("COLUMNS", width)
        exit_code("list", family)
        printed.append(capsys.readouterr().out)
    narrow, wide = printed
    assert max(map(len, narrow.splitlines())) <= 50
    assert numbers(narrow) == numbers(wide)


# --- what is said -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arrivals", "words"),
    [
        ({"type": "constant", "rate": "10 /s"}, "open loop"),
        ("all_at_once", "offline"),
        ({"type": "closed_loop", "concurrency": 2}, "closed loop"),
    ],
    ids=str,
)
def test_a_run_is_called_what_it_is(arrivals, words):
    result = simulate(changed(BASE, workload__arrivals=arrivals))
    assert result.loop == words
    assert words in text(results_table(result), 80)


def test_equal_clients_are_one_row(result):
    rows = section(text(results_table(result), 120), "Clients").splitlines()[2:]
    clients = result.clients
    assert len(rows) == 2  # and what they can keep
    assert rows[0].startswith("  3 x llm ")
    low, high = clients["num_visits"].min(), clients["num_visits"].max()
    assert low < high
    assert f"{low}–{high}" in rows[0]
    peak = 100 * clients["peak_used_blocks"] / clients["num_gpu_blocks"]
    assert f"{peak.min():.0f}–{peak.max():.0f} %" in rows[0]
    assert " of 1,024 " in rows[0]  # seats


def test_different_clients_are_row_each_up_to_twelve():
    clients = [{"name": f"c{k}", "gpu": "h100-sxm"} for k in range(14)]
    rows = section(text(results_table(simulate(changed(BASE, clients=clients))), 90), "Clients")
    assert [row.split()[0] for row in rows.splitlines()[2:]] == [
        *(f"c{k}" for k in range(12)),
        "and",
        "KV",
    ]
    assert "and 2 more" in rows


def test_what_the_kv_caches_hold_stands_below_clients(result):
    told = section(text(results_table(result), 120), "Clients")
    blocks = int(result.clients["num_gpu_blocks"][0])
    held = f"{blocks:,} blocks of 16 tokens, {16 * blocks:,} tokens"
    assert f"KV cache of llm, in 16 bits: {held}" in told
    narrow = simulate(changed(BASE, model="llama-3.1-70b-fp8"))
    told = section(text(results_table(narrow), 120), "Clients")
    assert "KV cache of llm, in 8 bits (fp8): " in told
    for model, tokens, groups in (("gpt-oss-20b", "16", 2), ("qwen3.5-27b", "832", 4)):
        client = {"clients.0.gpu": "h200"} if groups == 4 else {}
        found = simulate(Scenario.from_dict(BASE, overrides={"model": model, **client}))
        told = section(text(results_table(found), 120), "Clients")
        each = f"each of {tokens} tokens in one of {groups} groups of layers"
        blocks = found.clients["num_gpu_blocks"][0]
        assert f"KV cache of llm, in 16 bits: {blocks:,} blocks, {each}" in told
    assert "of 16 tokens" not in told


def test_electricity_is_a_line_and_part_of_cost():
    found = simulate(changed(BASE, cost={"electricity": "0.15 $/kWh"}))
    free = simulate(changed(BASE, cost={}))
    paid = found.summary["electricity_cost_usd"]
    assert paid == pytest.approx(found.summary["energy_j"] / 3.6e6 * 0.15)
    assert found.summary["cost_usd"] == pytest.approx(free.summary["cost_usd"] + paid)
    assert "of it electricity" in text(results_table(found), 80)
    assert "electricity_cost_usd" not in free.summary


def test_share_that_is_not_known_is_no_number():
    assert percent(float("nan"), 1) == "-"


def test_clients_that_serve_nothing_are_in_the_range(result):
    idle = simulate(changed(BASE, workload__lengths__num_requests=1))
    row = section(text(results_table(idle), 80), "Clients").splitlines()[2]
    assert "0–1" in row
    assert row.split()[4] == "-", "one request says nothing of room"


def test_a_client_into_which_no_prompt_fits_has_no_room():
    clients = [
        {"name": "p", "gpu": "h100-sxm", "role": "prefill"},
        {
            "name": "d",
            "gpu": "h100-sxm",
            "role": "decode",
            "kv_cache": {"num_gpu_blocks_override": 10},
        },
    ]
    result = simulate(changed(BASE, clients=clients, network={"bandwidth": "400 Gb/s"}))
    assert result.summary["completed"] == 0
    rows = section(text(results_table(result), 120), "Clients").splitlines()
    assert " 100 % " in rows[2]
    assert " 0 % " in rows[3]
    assert rows[-1].strip() == "no room in 100 % of the time at d, mostly for KV memory"


# --- Python -----------------------------------------------------------------------------------


def test_a_result_says_in_line_what_it_is(result, replications):
    assert repr(result) == (
        f"<Result: 40 of 40 requests finished in {result.requests['finished_at'].max():.4g} s>"
    )
    assert repr(replications) == "<Replications: 3 runs>"
    assert (
        repr(Scenario.load("demo"))
        == str(Scenario.load("demo"))
        == (
            "<Scenario: preset demo: 2 x llm (llama-3.1-8b on h100-sxm); router least_outstanding; "
            "seed 0>"
        )
    )


def test_a_result_says_how_many_failed():
    failed = simulate(changed(BASE, clients__0__kv_cache={"num_gpu_blocks_override": 60}))
    completed = failed.summary["completed"]
    assert 0 < completed < 40
    assert f"{completed} of 40 requests finished" in repr(failed)


def test_show_prints_what_the_command_prints(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    few = {"workload.lengths.num_requests": 20}
    simulate(Scenario.load("demo", few)).show()
    shown = capsys.readouterr().out
    assert not [line for line in shown.splitlines() if line.endswith(" ")]
    exit_code("run", "demo", "--set", "workload.lengths.num_requests=20")
    assert capsys.readouterr().out == shown
    replicate(Scenario.load("demo", {**few, "replications": 2}), jobs=1).show()
    assert "2 replications" in capsys.readouterr().out


def test_a_notebook_shows_the_tables(result, replications):
    for found, words in ((result, "requests finished"), (replications, "3 replications")):
        html = found._repr_html_()
        assert html.startswith("<pre")
        assert words in html
        plain = re.sub(r"<[^>]*>", "", html).replace("&lt;", "<")
        table = results_table(found) if found is result else replications_table(found)
        assert set(numbers(text(table, 80))) <= set(numbers(plain))


def test_a_notebook_shows_a_scenario_and_nothing_in_it_is_markup():
    html = changed(BASE, clients__0__name="<b>&")._repr_html_()
    assert "3 x &lt;b&gt;&amp; (llama-3.1-8b on h100-sxm); router random; seed 0" in html
    assert "num_requests: 40" in html
    assert "<b>" not in html
    failed = simulate(changed(BASE, clients__0__name="[bold]<b>"))
    assert "<b>" not in failed._repr_html_()
    assert "3 x [bold]&lt;b&gt;" in failed._repr_html_()
