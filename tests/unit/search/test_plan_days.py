"""Plans over a day: what each hour needs beside plans of its rate, dollars, files of rates."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from math import cos, pi
from pathlib import Path

import pytest

from mist_sim import Scenario
from mist_sim.report.plan import plan_page
from mist_sim.search import PlanOptions, plan
from mist_sim.search.planning.day import at_one_rate, day_in, day_of, own_day
from tests.reference.scenarios import of_profile
from tests.refusals import refusal, refused

ASKED = {
    "model": "llama-3.1-8b",
    "workload": of_profile(300, "20 /s", name="azure-conv-2023"),
    "clients": [{"name": "llm", "gpu": "h100-sxm"}],
    "slo": {"ttft": "200 ms", "tpot": "18 ms"},
}
FEW = {
    "gpus": ("h100-sxm",),
    "designs": ("together",),
    "tensor_parallel_sizes": (1,),
    "max_gpus": 4,
    "as_is": True,
}
NIGHT, MORNING, NOON = 4.0, 22.0, 50.0
RATES = (NIGHT,) * 7 + (MORNING,) * 5 + (NOON,) * 2 + (MORNING,) * 9 + (0.0,)
DAILY = {"type": "day", "peak": "30 /s", "low": "2 /s", "peak_at": "14 h"}


def planned(changes=None, **options):
    return plan(Scenario.from_dict(ASKED, changes or {}), PlanOptions(**FEW | options), jobs=1)


@pytest.fixture(scope="module")
def found():
    return planned(day=RATES)


def test_each_hour_has_as_many_engines_as_a_plan_of_its_rate(found):
    alone = {rate: planned(rate=rate) for rate in (NIGHT, MORNING, NOON)}
    numbers = {rate: one.num_gpus for rate, one in alone.items()}
    assert numbers[NIGHT] < numbers[MORNING] < numbers[NOON]
    hours = found.data["day"]["hours"]
    assert [hour["num_engines"] for hour in hours] == [numbers[rate or NIGHT] for rate in RATES]
    assert [hour["rate"] for hour in hours] == [*RATES]
    assert found.name == alone[NOON].name
    assert found.at_rate == alone[NOON].at_rate


def test_dollars_of_a_day_are_those_of_its_hours(found):
    day = found.data["day"]
    each = [hour["usd_per_hour"] for hour in day["hours"]]
    assert day["by_hour_usd_per_day"] == pytest.approx(sum(each))
    assert day["fixed_usd_per_day"] == pytest.approx(24 * found.usd_per_hour)
    assert day["fixed_usd_per_month"] == pytest.approx(730 * found.usd_per_hour)
    assert day["saved"] == pytest.approx(1 - sum(each) / (24 * max(each)))
    (line,) = (line.text for line in found.lines if line.name == "a day")
    assert line.startswith(f"{24 * found.usd_per_hour:,.4g} $ with these all day")


def test_a_report_draws_the_engines_of_each_hour(found):
    summary = found.summary
    drawing = plan_page(summary, "").figures[-1]
    (panel,) = drawing.figure.panels
    assert panel.marks[0].x == [hour["num_engines"] for hour in summary["day"]["hours"]]
    assert panel.rows[12] == "12:00, 50 /s"
    of_a_rate = {name: value for name, value in summary.items() if name != "day"}
    assert [each.name for each in plan_page(of_a_rate, "").figures] == ["tried"]


class Number:
    """Stands for a need."""

    is_fewest = True

    def __init__(self, number):
        self.num_engines, self.dollars, self.candidate = number, 2.0 * number, self


def test_hours_between_equal_needs_are_not_looked_at():
    """A rate of 10 k needs k engines; 24 rates from 1 to 24 need 1, 2 or 3."""
    looked = []

    def look(rate, least, most):
        looked.append(rate)
        assert least <= -(-rate // 10) <= most.num_engines
        return Number(-(-rate // 10))

    found = day_of([float(k) for k in range(1, 25)], Number(3), look)
    assert [need.num_engines for need in found.needs] == [1] * 10 + [2] * 10 + [3] * 4
    assert len(looked) < 12
    assert found.by_hour == 2 * (10 + 20 + 12)


def test_a_day_of_arrivals_has_the_highest_rate_of_each_hour():
    daily = own_day(Scenario.from_dict(ASKED, {"workload.arrivals": DAILY}))
    assert daily[13] == daily[14] == 30
    assert daily[2] == pytest.approx(2 + 14 * (1 + cos(2 * pi * 11 / 24)))
    plan_of_rates = {"type": "schedule", "at": ["0 s", "90 min"], "rates": ["3 /s", "1 /s"]}
    arrivals = plan_of_rates | {"period": "24 h"}
    assert own_day(Scenario.from_dict(ASKED, {"workload.arrivals": arrivals})) == (3, 3) + (1,) * 22


def test_an_hour_of_daily_arrivals_is_poisson_and_no_longer_than_runs():
    whole = {"workload.arrivals": DAILY, "workload.lengths.num_requests": 500_000}
    one = at_one_rate(Scenario.from_dict(ASKED, whole))
    assert one.workload.arrivals.type_ == "poisson"
    assert one.workload.num_requests == 3000
    plain = Scenario.from_dict(ASKED)
    assert at_one_rate(plain) is plain


def test_a_trace_of_days_is_counted_by_the_hour(tmp_path):
    """36 hours: 60 requests an hour, but 180 in hour 3, and 120 in hour 3 of the second day."""
    rows = [AZURE]
    for hour in range(36):
        number = {3: 180, 27: 120}.get(hour, 60)
        rows += [f"{at(hour + k / number)},100,10" for k in range(number)]
    (tmp_path / "trace.csv").write_text("\n".join(rows))
    found = day_in(str(tmp_path / "trace.csv"))
    assert found[3] == pytest.approx(150 / 3600)
    assert found[:3] == pytest.approx([60 / 3600] * 3)
    assert found[4:] == pytest.approx([60 / 3600] * 20, rel=0.01)  # to the last request


AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens"


def at(hours):
    return datetime(2023, 11, 16, tzinfo=UTC) + timedelta(hours=hours)


def table(*rows):
    return "\n".join(["hour,rate", *rows])


WHOLE = [f"{hour},{hour}" for hour in range(24)]


def test_a_table_of_rates_may_have_any_order_and_blanks(tmp_path):
    (tmp_path / "day.csv").write_text(
        "\ufeffrate, hour\n" + "\n".join(f"{h}, {h}" for h in range(24))
    )
    assert day_in(str(tmp_path / "day.csv")) == tuple(range(24))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (table(*WHOLE[:-1]), "must have a row for each hour from 0 to 23, got none for 23"),
        (table(*WHOLE, "3,1"), "line 26: hour must be from 0 to 23, each once, got 3"),
        (table("2.5,1"), "line 2: hour must be from 0 to 23, each once, got 2.5"),
        (table("0,-1"), "line 2: rate must be finite and >= 0 /s, got -1"),
        (table("0,nan"), "line 2: rate must be finite and >= 0 /s, got nan"),
        (table("0,many"), "line 2: rate must be a number, got 'many'"),
        (table("0"), "line 2: rate must be a number"),
        ("hour,load\n0,1", "rate"),
        (
            f"{AZURE}\n{at(0)},1,1\n{at(2)},1,1",
            "must cover 24 hours",
        ),
    ],
)
def test_files_that_are_no_day_are_refused(tmp_path, text, told):
    (tmp_path / "day.csv").write_text(text)
    assert told in refusal(lambda: day_in(str(tmp_path / "day.csv")))


test_days_that_cannot_be_planned = refused(
    lambda options: PlanOptions(gpus=("h100-sxm",), **options),
    ({"day": RATES, "rate": 3.0}, "rate must be left out with day, got 3"),
    ({"day": RATES, "users": 3}, "users must be left out with day, got 3"),
    ({"day": (1.0,) * 23}, "day must be 24 rates"),
    ({"day": (-1.0,) * 24}, "day must be 24 rates, finite and >= 0 /s"),
    ({"day": (0.0,) * 24}, "day must have an hour with requests"),
)

test_arrivals_that_are_no_day = refused(
    lambda changes: own_day(Scenario.from_dict(ASKED, changes)),
    ({}, "day must be a file unless workload.arrivals are of type day"),
    ({"workload.arrivals": DAILY | {"period": "12 h", "peak_at": "1 h"}}, "period of 24 h"),
)


def test_the_command_line_takes_a_file_or_the_own_day(mist, tmp_path):
    Path("a.json").write_text(json.dumps(ASKED))
    Path("day.csv").write_text(table(*(f"{hour},{rate}" for hour, rate in enumerate(RATES))))
    words = ["plan", "a.json", "--max-gpus=4", "--tp=1", "--designs=together", "--as-is"]
    words += ["--jobs=1", "-q"]
    code, out, _ = mist(*words, "--day=day.csv")
    told = " ".join(out.split())
    assert code == 0
    assert "By hour" in told
    assert "00:00 to 07:00 4" in told
    assert "12:00 to 14:00 50" in told
    code, out, _ = mist(
        *words, "--day=own", "--json", f"--set=workload.arrivals={json.dumps(DAILY)}"
    )
    hours = json.loads(out)["day"]["hours"]
    assert (code, hours[14]["rate"]) == (0, 30)
    assert hours[2]["num_engines"] < hours[14]["num_engines"]
    code, _, err = mist(*words, "--day=own")
    assert code == 2
    assert "day must be a file unless" in err
    assert mist(*words, "--day=day.csv", "--rate=3")[0] == 2
