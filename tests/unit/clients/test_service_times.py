"""How long workers take: numbers, laws, files of measured times, functions that draw."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from scipy import stats

import mist_sim as mist
from mist_sim import Scenario, ScenarioError, SequentialClient, TraceError, simulate
from mist_sim import durations as empirical
from mist_sim.clients import CLIENTS, Client
from mist_sim.durations import (
    DURATIONS,
    ConstantDuration,
    EmpiricalDuration,
    ExponentialDuration,
    GammaDuration,
    LogNormalDuration,
    SecondsOrLaw,
    UniformDuration,
)
from mist_sim.rng import Streams
from mist_sim.scenario.build import build
from mist_sim.scenario.json_schema import json_schema
from mist_sim.units import Seconds
from tests.reference.scenarios import synthetic
from tests.refusals import refused

GAMMA = {"type": "gamma", "mean": "20 ms", "std": "10 ms"}
NAME: dict[str, Any] = {"name": "cpu"}
ALONE = NAME | {"type": "sequential", "serves": ["preprocess"]}


def scenario(*clients: dict[str, Any], num_requests: int = 300, seed: int = 0) -> Scenario:
    """Requests of one stage of 40 tokens, by default on a client of one's own."""
    return Scenario.from_dict(
        {
            "seed": seed,
            "workload": synthetic(
                num_requests, 1, 1, "30 /s", pipeline=[{"type": "preprocess", "num_tokens": 40}]
            ),
            "clients": [(NAME if "type" in client else ALONE) | client for client in clients],
        }
    )


def times(result: mist.Result, client: str = "cpu") -> np.ndarray:
    """Return the service times of a client in the order in which they began, seconds."""
    rows = result.stages[result.stages.client == client].sort_values("started_at")
    return (rows.finished_at - rows.started_at).to_numpy()


# --- laws in a file -----------------------------------------------------------------------------


def test_a_base_time_may_be_drawn_and_tokens_come_on_top():
    alone = times(simulate(scenario({"base_time": GAMMA})))
    with_tokens = times(simulate(scenario({"base_time": GAMMA, "time_per_token": "1 ms"})))
    assert len(set(alone)) == 300
    assert alone.mean() == pytest.approx(0.020, rel=0.1)
    np.testing.assert_allclose(with_tokens - alone, 0.040, atol=1e-9)
    drawn = {"type": "uniform", "low": "1 ms", "high": "2 ms"}  # once for a stage
    found = times(simulate(scenario({"time_per_token": drawn})))
    assert 0.040 < found.min() < found.max() < 0.080
    assert len(set(found)) == 300


def test_a_law_takes_place_of_tools_own_duration():
    data = scenario({"base_time": GAMMA}).model_dump(mode="json", by_alias=True)
    del data["workload"]["trace"]
    data["workload"]["pipeline"] = [{"type": "tool_call", "duration": "9 s"}]
    data["clients"][0] |= {"serves": ["tool_call"], "time_per_token": None}
    assert times(simulate(Scenario.from_dict(data))).max() < 1.0


def test_measured_times_come_from_a_list_or_file(tmp_path):
    (tmp_path / "seconds.txt").write_text("# of the parser\n0.010\n\n0.020\n 3e-2 \n")
    of_list = {"type": "empirical", "times": ["10 ms", "20 ms", "30 ms"]}
    of_file = {"type": "empirical", "path": str(tmp_path / "seconds.txt")}
    one, other = (times(simulate(scenario({"base_time": law}))) for law in (of_list, of_file))
    np.testing.assert_array_equal(one, other)
    assert set(np.round(one, 9)) == {0.01, 0.02, 0.03}


def test_the_file_is_found_beside_the_scenario_and_read_once_for_all_copies(tmp_path, monkeypatch):
    (tmp_path / "seconds.txt").write_text("0.25\n")
    client = {"count": 500, "base_time": {"type": "empirical", "path": "seconds.txt"}}
    text = scenario({"base_time": "1 s"}).resolved()
    path = tmp_path / "file.yaml"
    path.write_text(text)
    overrides = {f"clients.0.{key}": value for key, value in client.items()}
    loaded = Scenario.load(path, overrides)
    reads = []
    monkeypatch.setattr(empirical, "_times_in", lambda path: reads.append(path) or iter([0.25]))
    assert len(build(loaded).clients) == 500
    assert len(reads) == 1


def test_what_is_resolved_says_laws_and_runs_same():
    per_token = {"type": "exponential", "mean": "1 ms"}
    given = scenario({"base_time": GAMMA, "time_per_token": per_token})
    data = given.model_dump(mode="json", by_alias=True)
    assert data["clients"][0]["base_time"] == {"type": "gamma", "mean": "0.02 s", "std": "0.01 s"}
    del data["workload"]["trace"]
    again = Scenario.from_dict(data)
    assert again == given
    assert simulate(again).requests.equals(simulate(given).requests)


def test_a_law_of_ones_own():
    @DURATIONS.register("two_point")
    @dataclass(frozen=True)
    class TwoPoint:
        """Short, or long with a probability. short, long: seconds. chance: of the long one."""

        short: Seconds
        long: Seconds
        chance: float = 0.5

        def sample(self, rng, n):
            return np.where(rng.random(n) < self.chance, self.long, self.short)

    try:
        law = {"type": "two_point", "short": "10 ms", "long": "70 ms"}
        found = times(simulate(scenario({"base_time": law})))
    finally:
        del DURATIONS._classes["two_point"]
    assert set(np.round(found, 9)) == {0.01, 0.07}


def test_a_client_type_of_ones_own_may_have_a_time_or_a_law():
    @CLIENTS.register("desk")
    @dataclass(eq=False)
    class Desk(Client):
        """pause: seconds, or a law of them."""

        name: str
        pause: SecondsOrLaw = 0.5

        def __post_init__(self):
            super().__init__(self.name, ("preprocess",))

        def accept(self, visit):
            self.begin(visit)
            self.finish(visit)

        def abort(self, visit):
            pass

    try:
        given = ({}, {"pause": "2 s"}, {"pause": GAMMA})
        made = [build(scenario({"type": "desk"} | one)).clients[0] for one in given]
    finally:
        del CLIENTS._classes["desk"]
    assert [client.pause for client in made] == [0.5, 2.0, GammaDuration(mean=0.02, std=0.01)]


def test_editors_know_that_a_time_may_be_law():
    options = json_schema()["properties"]["clients"]["items"]["anyOf"]
    (worker,) = [one for one in options if one["properties"]["type"]["const"] == "sequential"]
    choices = worker["properties"]["base_time"]["anyOf"]
    assert choices[0]["examples"] == ["1 s"]
    laws = [one["properties"]["type"]["const"] for one in choices if "properties" in one]
    assert laws == ["constant", "empirical", "exponential", "gamma", "lognormal", "uniform"]
    names = [one for one in choices if "enum" in one]
    assert names == [], "each of them has parameters that are required"


# --- what each law is ---------------------------------------------------------------------------

MEASURED = (0.1, 0.1, 0.2, 1.6)


@pytest.mark.parametrize(
    ("law", "mean", "std", "theory"),
    [
        (ConstantDuration(time=2.0), 2.0, 0.0, None),
        (EmpiricalDuration(times=MEASURED), np.mean(MEASURED), np.std(MEASURED), None),
        (ExponentialDuration(mean=2.0), 2.0, 2.0, stats.expon(scale=2.0)),
        (GammaDuration(mean=2.0, std=1.0), 2.0, 1.0, stats.gamma(4.0, scale=0.5)),
        (
            LogNormalDuration(mean=2.0, std=1.0),
            2.0,
            1.0,
            stats.lognorm(np.log(1.25) ** 0.5, scale=2.0 / 1.25**0.5),
        ),
        (UniformDuration(low=1.0, high=4.0), 2.5, 3.0 / 12**0.5, stats.uniform(1.0, 3.0)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_law_has_mean_and_shape_that_it_promises(law, mean, std, theory):
    """200,000 draws: the mean within 4 standard errors (false alarms: 1 in 16,000 seeds).

    An error of 1 % in the mean would be 45 (exponential) to 89 (gamma) of these. The shape is
    compared by Kolmogorov and Smirnov at 0.001; a law of a std 5 % too large is noticed.
    """
    number = 200_000
    drawn = law.sample(Streams(5).generator("law"), number)
    assert abs(drawn.mean() - mean) <= 4 * std / number**0.5 + 1e-12
    if theory is None:
        assert set(drawn) == set(getattr(law, "times", [2.0]))
    else:
        assert stats.kstest(drawn, theory.cdf).pvalue > 0.001


# --- streams ------------------------------------------------------------------------------------

TWO = ({"base_time": GAMMA}, {"name": "other", "base_time": GAMMA, "serves": ["postprocess"]})


def test_two_runs_are_equal_and_another_seed_is_not():
    simulation = build(scenario({"base_time": GAMMA}))
    first, again = simulation.run(), simulation.run()
    assert first.requests.equals(again.requests)
    assert first.stages.equals(again.stages)
    other = simulate(scenario({"base_time": GAMMA}, seed=1))
    assert not np.array_equal(times(first), times(other))
    result = simulate(scenario({"base_time": GAMMA, "count": 2}))
    assert not set(times(result, "cpu-0")) & set(times(result, "cpu-1"))


def test_no_client_shifts_what_another_one_draws():
    alone = simulate(scenario(TWO[0]))
    both = simulate(scenario(*TWO))
    np.testing.assert_array_equal(times(alone), times(both))
    fixed = simulate(scenario({"base_time": "20 ms"})).requests
    assert alone.requests["arrival_time"].equals(fixed["arrival_time"])
    assert not alone.requests["finished_at"].equals(fixed["finished_at"])


def test_no_time_shifts_what_the_other_one_draws():
    """The base is drawn from a stream of its own, whatever the time for a token draws."""
    per_token = {"type": "exponential", "mean": "1 ms"}
    base = times(simulate(scenario({"base_time": GAMMA})))
    tokens = times(simulate(scenario({"time_per_token": per_token})))
    both = times(simulate(scenario({"base_time": GAMMA, "time_per_token": per_token})))
    np.testing.assert_allclose(both, base + tokens, atol=1e-9)


def test_more_workers_serve_same_times_in_same_order():
    """Common random numbers: the k-th visit takes as long, however many workers there are."""
    one = times(simulate(scenario({"base_time": GAMMA})))
    three = times(simulate(scenario({"base_time": GAMMA, "num_workers": 3})))
    np.testing.assert_allclose(one, three, atol=1e-9)


# --- functions ----------------------------------------------------------------------------------


def run(service_time: Any, seed: int = 0, more: tuple[Client, ...] = ()) -> mist.Result:
    cpu = SequentialClient("cpu", serves=["preprocess"], service_time=service_time)
    lengths = mist.Synthetic(
        num_requests=300, prompt=mist.FixedLength(tokens=1), output=mist.FixedLength(tokens=1)
    )
    pipeline = mist.template([mist.Preprocess(num_tokens=40)])
    workload = mist.Workload(lengths, mist.PoissonArrivals(rate=30.0), pipeline)
    return mist.Simulation(clients=[cpu, *more], workload=workload, seed=seed).run()


def with_rng(stage, rng):
    return rng.exponential(0.5e-3 * stage.num_tokens)


def with_rng_by_name(stage, *, rng):
    return with_rng(stage, rng)


class AnObject:
    def __call__(self, stage, rng):
        return with_rng(stage, rng)


@pytest.mark.parametrize("function", [with_rng, with_rng_by_name, AnObject()])
def test_a_function_that_draws_gets_a_generator_and_two_runs_are_equal(function):
    first, again, other = run(function), run(function), run(function, seed=1)
    assert first.requests.equals(again.requests)
    assert not np.array_equal(times(first), times(other))
    assert len(set(times(first))) == 300


def test_a_function_draws_from_stream_of_its_own():
    busy = SequentialClient(
        "other", serves=["preprocess"], service_time=lambda stage, rng: rng.random()
    )
    alone = run(with_rng)
    beside = run(with_rng, more=(busy,))
    shared = min(len(times(beside)), len(times(alone)))
    assert shared > 100
    np.testing.assert_allclose(times(beside)[:shared], times(alone)[:shared], atol=1e-9)


@pytest.mark.parametrize(
    "function",
    [
        lambda stage: 0.02,
        lambda stage, seconds=0.02: seconds,
        lambda stage: np.float32(0.02),
        lambda *args: 0.02,
        lambda stage, rng: 0.02 * rng.integers(1, 2),
    ],
)
def test_a_function_that_draws_nothing_needs_no_generator(function):
    np.testing.assert_allclose(times(run(function)), 0.02, atol=1e-7)


# --- refused ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("time", "expected"),
    [
        (5, "base_time: a duration needs a number and a unit, such as '1 s', got 5"),
        ("-1 s", "base_time: must be >= 0 s, got -1.0"),
        ({"mean": "1 s"}, "base_time: must be a name or a mapping with a type, got {'mean': '1"),
        ("gamma", "base_time.mean: is required"),
        ({"type": "gama"}, "base_time.type: no duration named 'gama'; did you mean 'gamma'?"),
        ({"type": "constant", "time": "0 s"}, "base_time.time: must be finite and > 0 s, got 0.0"),
        (GAMMA | {"mean": 1}, "base_time.mean: a duration needs a number and a unit"),
        (GAMMA | {"std": "0 s"}, "base_time.std: must be finite and > 0 s, got 0.0"),
        (GAMMA | {"std": "3 s"}, "base_time.std: must be <= 100 x mean (2), got 3.0"),
        (GAMMA | {"std": "1 ns"}, "base_time.std: must be >= 1e-6 x mean (2e-08), got 1e-09; con"),
        (GAMMA | {"cv": 1}, "base_time.cv: unknown key for type gamma. Known: type, mean, std"),
        ({"type": "empirical"}, "base_time.times: must be given, or path in place of them"),
        ({"type": "empirical", "times": []}, "base_time.times: must have at least one time, got "),
        ({"type": "empirical", "times": ["0 s"]}, "base_time: times[0] must be finite and > 0 s"),
        ({"type": "empirical", "path": "none.txt"}, "base_time.path: no file none.txt in the work"),
        ({"type": "empirical", "path": "."}, "base_time: .: is a folder"),
    ],
)
def test_what_is_wrong_with_a_law_is_said(time, expected):
    with pytest.raises(ScenarioError) as error:
        scenario({"base_time": time})
    assert f"clients.0.{expected}" in str(error.value)


@pytest.mark.parametrize("line", ["seconds", "0", "-1", "nan", "inf", "1e999", "1 ms", "0.1,0.2"])
def test_a_bad_line_of_a_file_is_named(line, tmp_path):
    path = tmp_path / "seconds.txt"
    path.write_text(f"0.5\n\n{line}\n")
    with pytest.raises(TraceError, match="seconds.txt:3: must be a finite number of seconds > 0"):
        EmpiricalDuration(path=str(path))


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"# nothing\n\n", "must have at least one time, got none"),
        (b"1\n\xff\n", "not a UTF-8 text file"),
    ],
)
def test_a_file_without_times_is_named(content, expected, tmp_path):
    path = tmp_path / "seconds.txt"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"seconds.txt.* {expected}"):
        EmpiricalDuration(path=str(path))
    with pytest.raises(ValueError, match="times must be left out with path, got both"):
        EmpiricalDuration(times=[1.0], path=str(path))


test_what_cannot_be_a_time_is_refused = refused(
    lambda options: SequentialClient("w", serves=["preprocess"], **options),
    ({"base_time": "2 ms"}, "base_time must be a number, got '2 ms', write 0.002"),
    ({"base_time": float("nan")}, "base_time must be finite and >= 0 s, got nan"),
    ({"service_time": 3.0}, "service_time must be a function of a stage, and of `rng` if it"),
    ({"service_time": lambda: 1.0}, "got one with .*: too many positional arguments"),
    ({"service_time": lambda stage, generator: 1.0}, "missing a required argument: 'generator"),
    (
        {"service_time": with_rng, "base_time": GammaDuration(mean=1.0, std=1.0)},
        "service_time must be left out with base_time",
    ),
    error=ValueError,
)


class Zeros:
    def sample(self, rng, n):
        return np.zeros(n)


class Fewer:
    def sample(self, rng, n):
        return np.ones(n - 1)


class Endless:
    def sample(self, rng, n):
        return np.full(n, np.inf)


@pytest.mark.parametrize(
    ("law", "expected"),
    [
        (Zeros(), "cpu: base_time must be > 0 s, got 0.0"),
        (Fewer(), "cpu: base_time must be 64 times to match the number asked for, got an array of"),
        (Endless(), "cpu: the service time of Preprocess.* must be a finite number >= 0 s, got in"),
    ],
)
def test_a_law_that_draws_no_times_ends_run(law, expected):
    cpu = SequentialClient("cpu", serves=["preprocess"], base_time=law)
    workload = mist.Workload.from_lists([1], [1], pipeline=mist.template([mist.Preprocess()]))
    with pytest.raises(ScenarioError, match=expected):
        mist.Simulation(clients=[cpu], workload=workload).run()
