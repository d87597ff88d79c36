"""Work on texts: measured times, the client that takes them, timed functions, the measuring."""

import json

import pytest

import mist_sim as mist
from mist_sim.calibration import text as measure
from mist_sim.calibration import text as tasks
from mist_sim.clients.workers.growing import num_until_growth
from mist_sim.clients.workers.text import LONG, TaskTime, load_times
from mist_sim.errors import ScenarioError
from mist_sim.hardware.predictors.measured.timing import Timing
from mist_sim.hardware.predictors.measured.timing_store import TimingStore
from mist_sim.stages import Augment, Postprocess, Preprocess
from tests.reference.scenarios import synthetic

TASKS = {"normalize", "tokenize", "augment", "detokenize", "validate", "enhance"}


def test_the_package_says_where_its_times_come_from():
    times = load_times()
    assert set(times.tasks) == TASKS
    assert "one core" in times.machine
    assert times.date.startswith("20")
    assert "tokenizers" in times.source


def test_times_are_linear_up_to_length_and_beyond():
    time = TaskTime(base=1.0, per_token=2.0, beyond=3.0)
    assert [time.seconds(n) for n in (0, 10, LONG, LONG + 2)] == [
        1,
        21,
        1 + 2 * LONG,
        5 + 2 * LONG + 6,
    ]


def test_text_client_takes_measured_time_of_each_task():
    times = load_times().tasks
    stages = [
        Preprocess(task="normalize"),
        Preprocess(task="tokenize", num_tokens=500),
        Postprocess(task="detokenize"),
    ]
    rows = mist.Rows([mist.TraceRow(1000, 70)])
    workload = mist.Workload(rows, mist.AllAtOnce(), mist.template(stages))
    result = mist.Simulation(clients=[mist.TextClient("cpu", speed=2.0)], workload=workload).run()
    expected = [("normalize", 1000), ("tokenize", 500), ("detokenize", 70)]
    seconds = sum(times[name].seconds(number) for name, number in expected) / 2
    assert result.requests["e2el"].iloc[0] == pytest.approx(seconds, rel=1e-12)
    assert len(result.stages) == 3
    assert result.stages["queued_at"].tolist() == [0.0] * 3  # one visit


def test_augmentation_lengthens_the_prompt():
    stages = [Augment(num_added_tokens=50), mist.Prefill, mist.Decode]
    rows = mist.Rows([mist.TraceRow(100, 2)])
    workload = mist.Workload(rows, mist.AllAtOnce(), mist.template(stages))
    clients = [mist.TextClient("cpu"), mist.llm_client("llm", model="llama-3.1-8b", gpu="l4")]
    result = mist.Simulation(clients=clients, workload=workload).run()
    assert result.requests["num_prompt_tokens"].tolist() == [150]


def test_a_file_of_ones_own_goes_into_scenario(tmp_path):
    data = {"tasks": {"clean": {"base_s": 1.5, "token_s": 0.25, "long_token_s": 0.0}}}
    (tmp_path / "times.json").write_text(json.dumps(data))
    scenario = {
        "workload": synthetic(
            2, 10, 2, "all_at_once", pipeline=[{"type": "preprocess", "task": "clean"}]
        ),
        "clients": [{"name": "cpu", "type": "text", "path": str(tmp_path / "times.json")}],
    }
    requests = mist.simulate(mist.Scenario.from_dict(scenario)).requests
    assert sorted(requests["e2el"]) == [4.0, 8.0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not valid JSON"),
        ("[]", "must hold a JSON object"),
        ('{"tasks": {"a": {"base_s": -1}}}', r"tasks.a.base_s must be finite seconds >= 0, got -1"),
        ('{"tasks": {"a": 3}}', r"tasks.a.base_s must be finite seconds >= 0, got null"),
    ],
)
def test_files_without_times_are_refused(tmp_path, text, message):
    path = tmp_path / "times.json"
    path.write_text(text)
    with pytest.raises(ScenarioError, match=message.replace("null", "None")):
        load_times(str(path))


def test_a_task_that_was_not_measured_is_named():
    rows = mist.Rows([mist.TraceRow(10, 2)])
    for stage, got in ((Preprocess(task="tokenise"), "tokenise"), (Preprocess(), "None")):
        workload = mist.Workload(rows, mist.AllAtOnce(), mist.template([stage]))
        with pytest.raises(ScenarioError, match=f"task must be one that was measured, got .*{got}"):
            mist.Simulation(clients=[mist.TextClient("cpu")], workload=workload).run()


@pytest.mark.parametrize("options", [{"num_workers": 0}, {"speed": 0.0}])
def test_parameters_out_of_range_are_refused(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        mist.TextClient("cpu", **options)


# --- a user's own function ----------------------------------------------------------------------


def calls_of(store: TimingStore, lengths: list[int]) -> tuple[list[int], list[float]]:
    """Return the inputs that were really run, and the seconds of stages."""
    seen: list[int] = []

    def count(text: str) -> None:
        seen.append(len(text))

    timed = mist.TimedFunction(
        count, lambda n: "x" * n, timing=Timing(warmup=0, repeats=1), store=store
    )
    return seen, [timed(Preprocess(num_tokens=n)) for n in lengths]


def test_a_function_is_timed_once_for_each_size_and_remembered(tmp_path):
    store = TimingStore(tmp_path / "timings.sqlite")
    seen, first = calls_of(store, [1, 6, 7, 8, 0])
    assert seen == [1, 4, 8, 0]
    again, second = calls_of(store, [8, 7, 6, 1, 0])
    assert again == []
    assert sorted(first) == sorted(second)
    assert first[1] == pytest.approx((first_of(store, 4) + first_of(store, 8)) / 2)


def first_of(store: TimingStore, num_tokens: int) -> float:
    return calls_of(store, [num_tokens])[1][0]


def test_a_timed_function_is_a_service_time(tmp_path):
    timed = mist.TimedFunction(
        str.split, lambda n: "word " * n, store=TimingStore(tmp_path / "timings.sqlite")
    )
    cpu = mist.SequentialClient("cpu", serves=["preprocess"], service_time=timed)
    rows = mist.Rows([mist.TraceRow(5000, 1)])
    workload = mist.Workload(rows, mist.AllAtOnce(), mist.template([Preprocess(task="split")]))
    seconds = mist.Simulation(clients=[cpu], workload=workload).run().requests["e2el"].iloc[0]
    assert 1e-5 < seconds < 0.1


# --- measuring ----------------------------------------------------------------------------------


def test_tasks_do_what_they_say():
    assert tasks.normalize("a\u00a0 b\x07\nﬁn ") == "a b\nfin"
    assert tasks.enhance("see [3]") == "see <a href='#3'>[3]</a>"
    assert tasks.validate('{"answer": "fine"}')
    assert not tasks.validate('{"answer": "mail me: a.b@example.org"}')
    assert "why not" in tasks.augment("why not")


@pytest.fixture
def folder(tmp_path):
    words = "the queue of a server grows when requests arrive faster than it serves".split(" ")  # noqa: SIM905
    lines = [" ".join(words[k % 9 : k % 9 + 3 + k % 5]) for k in range(6000)]
    (tmp_path / "a.txt").write_text("\n\n".join(lines))
    return tmp_path


def test_lines_are_fitted_and_scored_on_other_texts(folder, monkeypatch):
    pytest.importorskip("tokenizers")
    monkeypatch.setattr(measure, "LENGTHS", (64, 512, 2048))
    monkeypatch.setattr(measure, "_NUM_TEXTS", 4)
    monkeypatch.setattr(measure, "_REPEATS", 3)
    monkeypatch.setattr(measure, "_LEAST_SECONDS", 2e-4)
    fit = measure.calibrate_text(folder)
    assert set(fit.tasks) == TASKS == set(fit.errors)
    assert {len(errors) for errors in fit.errors.values()} == {6}
    assert 0 < fit.tasks["tokenize"].per_token < 1e-4
    path = folder / "times.json"
    path.write_text(fit.text())
    assert load_times(str(path)).tasks["tokenize"].per_token == pytest.approx(
        fit.tasks["tokenize"].per_token, rel=1e-3
    )


def test_a_line_is_found_again():
    rows = [
        measure.TimedText("t", n, 2e-6 + 3e-9 * n + 1e-9 * max(0, n - LONG), False)
        for n in (10, 100, 1000, 2048, 4000, 8000)
    ]
    line = measure._line(rows)
    found = [line.base, line.per_token, line.beyond]
    assert found == pytest.approx([2e-6, 3e-9, 1e-9], rel=1e-6)


def test_too_little_text_is_refused(tmp_path):
    pytest.importorskip("tokenizers")
    (tmp_path / "a.txt").write_text("a few words\n\nand more")
    with pytest.raises(ScenarioError, match="characters of text or more, got about 2"):
        measure.calibrate_text(tmp_path)
    with pytest.raises(ScenarioError, match=r"must be a folder of texts \(.txt"):
        measure.calibrate_text(tmp_path / "a.txt")


def test_worker_takes_stages_up_to_first_that_grows():
    """What follows a stage that grows is not known before it is served."""
    plain, grows = Preprocess(num_tokens=1), Augment(num_added_tokens=1)
    assert num_until_growth([plain, plain, grows, plain, grows]) == 3
    assert num_until_growth([plain, plain]) == 2
