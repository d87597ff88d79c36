"""Step times from measured tables: every form, between the points, beyond them, and bad files."""

from functools import partial

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import mist_sim as mist
from mist_sim.core.batch import StepBatch, StepGrowth, grown
from mist_sim.errors import ScenarioError
from mist_sim.hardware.collectives import all_gather
from mist_sim.hardware.predictors import TablePredictor
from mist_sim.hardware.predictors.measured import table as table_module
from mist_sim.testing import check_predictor
from tests.reference import measured

MODEL = mist.load_model("llama-3.1-8b")
ONE = mist.Cluster(mist.load_gpu("h100-sxm"), 1)


def table(path, form, subset=None, cluster=ONE):
    return TablePredictor(MODEL, cluster, str(path), form, subset)


def written(folder, form):
    """Write a table of a form that knows the whole law."""
    if form == "steps":
        return measured.write_steps(folder)
    write = {"vidur": measured.write_vidur, "layer_profile": measured.write_layer_profile}
    return write[form](folder, MODEL.num_layers)


@pytest.fixture
def forms(tmp_path):
    """Return a predictor of every form."""
    found = {}
    for name in ("steps", "layer_profile", "vidur"):
        (tmp_path / name).mkdir()
        found[name] = table(written(tmp_path / name, name), name)
    return found


POINTS = [  # of the chunk, its context, decodes, their mean context
    (0, 0, 1, 16),
    (0, 0, 40, 3_000),
    (0, 0, 64, 8_192),
    (100, 0, 0, 0),
    (1_000, 3_000, 0, 0),
    (300, 77, 30, 600),
    (2_048, 4_096, 256, 512),
]


@pytest.mark.parametrize("name", ["steps", "layer_profile", "vidur"])
@pytest.mark.parametrize(("new", "context", "n", "mean"), POINTS)
def test_a_law_that_is_linear_along_every_axis_is_met_everywhere(
    forms, name, new, context, n, mean
):
    batch = StepBatch(((new, context),) if new else (), n, n * mean)
    expected = measured.step_s(new, context, n, mean)
    assert forms[name].step_time(batch) == pytest.approx(expected, rel=1e-9)
    assert forms[name].steps_inside(batch, StepGrowth(n)) > 0


@pytest.mark.parametrize("name", ["steps", "layer_profile", "vidur"])
def test_several_prompts_add_up(forms, name):
    batch = StepBatch(((1_000, 0), (500, 100)), 8, 8 * 512)
    expected = measured.tokens_s(1_508) + measured.decodes_s(8, 512)
    expected += measured.chunk_s(1_000, 0) + measured.chunk_s(500, 100)
    assert forms[name].step_time(batch) == pytest.approx(expected, rel=0.002)


def test_beyond_the_last_point_the_slope_goes_on_and_is_told(forms):
    predictor = forms["steps"]
    far = StepBatch((), 300, 300 * 20_000)
    assert predictor.step_time(far) == pytest.approx(measured.step_s(0, 0, 300, 20_000), rel=1e-9)
    assert predictor.steps_inside(far, StepGrowth(300)) == 0
    near = StepBatch((), 8, 8 * 8_190)
    assert predictor.steps_inside(near, StepGrowth(8)) == 3  # means of 8,190 to 8,192
    chunked = StepBatch(((512, 3_072),))
    assert predictor.steps_inside(chunked, StepGrowth()) == 3  # contexts 3,072 to 4,096
    assert predictor.steps_inside(StepBatch(((2_100, 0),)), StepGrowth()) == 0


def test_beside_prompts_range_is_that_of_mixed_steps(tmp_path):
    measured.write_layer_profile(tmp_path, MODEL.num_layers)
    file = tmp_path / "attention.csv"
    rows = file.read_text().splitlines()
    file.write_text("\n".join(row for row in rows if not _mixed_beyond_64(row)) + "\n")
    predictor = table(tmp_path, "layer_profile")
    growth = StepGrowth(200)
    assert predictor.steps_inside(StepBatch((), 200, 200 * 512), growth) > 0
    assert predictor.steps_inside(StepBatch(((512, 0),)), growth) > 0
    assert predictor.steps_inside(StepBatch(((512, 0),), 200, 200 * 512), growth) == 0
    assert predictor.steps_inside(StepBatch(((512, 3_072),), 64, 64 * 512), StepGrowth(64)) == 3
    assert predictor.steps_inside(StepBatch(((1, 0),), 64, 64 * 8_190), StepGrowth(64)) == 3


def _mixed_beyond_64(row):
    chunk, _, num_decodes, *_ = row.split(",")
    return chunk not in ("prefill_chunk", "0") and int(num_decodes) > 64


def test_without_mixed_steps_decodes_count_as_tokens_of_the_prompt(tmp_path):
    predictor = table(measured.write_steps(tmp_path, mixed=False), "steps")
    seconds = predictor.step_time(StepBatch(((512, 0),), 8, 8 * 512))
    assert seconds == pytest.approx(measured.step_s(512, 0, 8, 512), rel=0.001)


def test_several_prompts_bear_the_largest_cost_of_decodes_beside_one(tmp_path):
    """Also where that is not the longest chunk's: here the first 64 tokens with much context."""
    measured.write_layer_profile(tmp_path, MODEL.num_layers, skew=False)
    file = tmp_path / "attention.csv"
    head, *rows = file.read_text().splitlines()
    slow = [_slower(row) if row.split(",")[1] == "4096" else row for row in rows]
    file.write_text("\n".join([head, *slow]) + "\n")
    predictor = table(tmp_path, "layer_profile")
    growth = StepGrowth(8)
    last = 0.0
    for new in (32, 63, 64, 65, 128):  # becomes the longest
        batch = StepBatch(((64, 4_096), (new, 0)), 8, 8 * 512)
        seconds = predictor.step_time(batch)
        assert seconds > last
        last = seconds
        assert predictor.run(batch, growth, 3)[0] == seconds
        later = StepBatch(((64, 4_160), (new, new)), 8, 8 * 513)
        assert predictor.run(batch, growth, 3)[1] == predictor.step_time(later)


def _slower(row):
    """Return a row of the attention file in which decodes beside a prompt add 1 s more."""
    *work, us = row.split(",")
    more = 1e6 / MODEL.num_layers if int(work[0]) and int(work[2]) else 0.0
    return ",".join([*work, repr(float(us) + more)])


@pytest.mark.parametrize("form", ["layer_profile", "steps"])
def test_more_beside_decodes_never_takes_less_beyond_measurements(tmp_path, form):
    """Beside 16 tokens the cost of decodes rises late, so its last slopes are the steepest."""
    path = _with_late_rise(tmp_path, form)
    predictor = table(path, form)
    work = [16, 17, 40, 64, 65, 512, 513, 2_048, 2_049, 4_000]
    for num_decodes, mean in ((64, 512), (256, 8_192), (2_000, 512), (64, 90_000), (900, 30_000)):
        chunks = [StepBatch(((new, 0),), num_decodes, num_decodes * mean) for new in work]
        contexts = [StepBatch(((16, new),), num_decodes, num_decodes * mean) for new in work]
        decodes = [StepBatch(((64, 0),), n, n * mean) for n in range(1, num_decodes + 40, 23)]
        means = [StepBatch(((64, 0),), num_decodes, num_decodes * m) for m in range(9, mean, 700)]
        for batches in (chunks, contexts, decodes, means):
            times = np.array([predictor.step_time(batch) for batch in batches])
            assert (np.diff(times) > -1e-12).all()
        batch, growth = chunks[3], StepGrowth(num_decodes)
        run = predictor.run(batch, growth, 5)
        assert run.tolist() == [predictor.step_time(grown(batch, growth, i)) for i in range(5)]


def _with_late_rise(folder, form):
    """Return a table in which decodes beside 64 tokens and more cost half as much again where
    there are 64, or 512 tokens of context.
    """
    unit = 1.0 if form == "steps" else 1e6 / MODEL.num_layers
    if form == "steps":
        found = file = measured.write_steps(folder)
    else:
        found, file = folder, folder / "attention.csv"
        measured.write_layer_profile(folder, MODEL.num_layers, skew=False)
    header, *lines = (line for line in file.read_text().splitlines() if line[0] != "#")
    rows = [[*map(int, line.split(",")[:4]), float(line.split(",")[4])] for line in lines]
    for row in rows:
        new, _, n, context, _ = row
        mean = context // n if form == "steps" and n else context
        if new >= 64 and (n == 64 or (n and mean == 512)):
            row[4] += 0.5 * measured.decodes_s(n, mean) * unit
    file.write_text("\n".join([header, *(",".join(map(repr, row)) for row in rows)]) + "\n")
    return found


def test_uneven_contexts_take_longer(forms):
    predictor = forms["layer_profile"]
    assert predictor.traits.needs_longest_context
    for chunks in ((), ((64, 256),)):
        even, uneven = (StepBatch(chunks, 8, 8 * 500, None, longest) for longest in (500, 1_000))
        more = predictor.step_time(uneven) - predictor.step_time(even)
        assert more == pytest.approx(0.1 * measured.decodes_s(8, 500), rel=1e-6)
    unasked = StepBatch((), 8, 8 * 500)
    assert predictor.step_time(unasked) == predictor.step_time(StepBatch((), 8, 4_000, None, 500))


def test_noise_never_makes_more_work_faster(tmp_path):
    lines = list(measured.steps_rows())
    noisy = [line + "1" if number % 3 else line for number, line in enumerate(lines[1:])]
    wrong = noisy[5].rsplit(",", 1)[0] + ",0.002"  # far too fast
    (tmp_path / "steps.csv").write_text("\n".join([lines[0], *noisy[:5], wrong, *noisy[6:]]))
    predictor = table(tmp_path / "steps.csv", "steps")
    for batches in (
        [StepBatch((), n, n * 700) for n in range(1, 300, 7)],
        [StepBatch((), 9, 9 * mean) for mean in range(1, 9_000, 50)],
        [StepBatch(((new, 100),)) for new in range(1, 3_000, 50)],
    ):
        times = [predictor.step_time(batch) for batch in batches]
        assert times == sorted(times)


def test_parquet_holds_the_same_steps(tmp_path):
    csv = measured.write_steps(tmp_path)
    rows = pa.Table.from_pandas(pd.read_csv(csv, comment="#"))
    for ranks, name in ((1, "same"), (2, "other")):
        notes = {"tensor_parallel_size": str(ranks)}
        pq.write_table(rows.replace_schema_metadata(notes), tmp_path / f"{name}.parquet")
    batch = StepBatch(((300, 5),), 20, 9_000)
    same = table(tmp_path / "same.parquet", "steps")
    assert same.step_time(batch) == table(csv, "steps").step_time(batch)
    with pytest.raises(
        ScenarioError, match="tensor_parallel_size must be what the client has, 1, got 2"
    ):
        table(tmp_path / "other.parquet", "steps")


def test_splitwise_needs_a_subset_and_the_ranks_measured(tmp_path):
    path = measured.write_splitwise(tmp_path)
    predictor = table(path, "splitwise", "m/b")
    prompt, answers = StepBatch(((512, 0),)), StepBatch((), 2, 600)
    assert predictor.step_time(prompt) == pytest.approx(2 * measured.tokens_s(512))
    assert predictor.step_time(answers) == pytest.approx(62e-3)
    check_predictor(lambda: predictor)
    with pytest.raises(ScenarioError, match="subset is required; the file has several. Known: m/a"):
        table(path, "splitwise")
    with pytest.raises(ScenarioError, match="subset has no 'm/c'; did you mean 'm/"):
        table(path, "splitwise", "m/c")
    with pytest.raises(ScenarioError, match="no rows of tensor_parallel_size 2, only of 1"):
        table(path, "splitwise", "m/a", mist.Cluster(mist.load_gpu("h100-sxm"), 2))


@pytest.mark.parametrize("name", ["steps", "layer_profile", "vidur"])
def test_every_form_holds_to_the_contract(forms, name):
    check_predictor(lambda: forms[name])


def test_ranks_add_their_all_reduces(tmp_path):
    batch, seconds = StepBatch(((512, 0),)), []
    for ranks in (1, 2):
        folder = tmp_path / f"tp{ranks}"
        folder.mkdir()
        measured.write_layer_profile(folder, MODEL.num_layers)
        cluster = mist.Cluster(mist.load_gpu("h100-sxm"), ranks)
        seconds.append(table(folder, "layer_profile", cluster=cluster).step_time(batch))
    assert seconds[1] > seconds[0] + 1e-6


@pytest.mark.parametrize(
    ("notes", "problem"),
    [
        ("model: meta-llama/Llama-3.1-8B\ngpu: H100-SXM", None),
        ("gpu: NVIDIA H100 80GB HBM3\nhardware: h100-sxm", None),
        ("model: llama-3.1-70b", "model must be what the client has, llama-3.1-8b, got"),
        ("gpu: l40s", "gpu must be what the client has, h100-sxm, got l40s"),
        ("gpu: my card\nhardware: l40s", "h100-sxm, got my card / l40s; take a table"),
    ],
)
@pytest.mark.parametrize("form", ["steps", "layer_profile"])
def test_measurements_of_another_model_or_gpu_are_refused(tmp_path, form, notes, problem):
    if form == "steps":
        path = measured.write_steps(tmp_path)
        rows = path.read_text().split("\n", 2)[2]
        lines = [f"# {line}" for line in notes.split("\n")]
        path.write_text("\n".join([*lines, rows]))
    else:
        path = measured.write_layer_profile(tmp_path, MODEL.num_layers)
        (path / "meta.yaml").write_text(f"version: 1\n{notes}\nengine:\n  gpu: b200\n")
    if problem is None:
        assert table(path, form).step_time(StepBatch(((512, 0),))) > 0
    else:
        with pytest.raises(ScenarioError, match=problem):
            table(path, form)


@pytest.mark.parametrize(
    ("meta", "ranks", "fits"),
    [
        (None, 1, True),
        (None, 2, False),
        ("[2]", 2, True),
        ("[2]", 1, False),
        ("[1, 2]", 1, True),  # the folder does not say which: as without
        ("[1, 2]", 2, False),
    ],
)
def test_layer_profile_is_of_ranks_that_it_names(tmp_path, meta, ranks, fits):
    path = measured.write_layer_profile(tmp_path, MODEL.num_layers)
    if meta:
        (path / "meta.yaml").write_text(f"tp_degrees: {meta}\n")
    cluster = mist.Cluster(mist.load_gpu("h100-sxm"), ranks)
    if fits:
        table(path, "layer_profile", cluster=cluster)
    else:
        with pytest.raises(ScenarioError, match=f"the client has {ranks}; name a folder tp{ranks}"):
            table(path, "layer_profile", cluster=cluster)


BAD = [
    ("steps", "steps.csv", lambda text: "", "has no header"),
    (
        "steps",
        "steps.csv",
        lambda text: text.replace("num_decodes", "decodes"),
        "no column 'num_decodes'; did you mean 'decodes'",
    ),
    (
        "steps",
        "steps.csv",
        lambda text: text.replace("\n0,0,1,16,", "\n0,0,one,16,"),
        "line 4: num_decodes must be a number >= 0, got 'one'",
    ),
    (
        "steps",
        "steps.csv",
        lambda text: "\n".join(line for line in text.splitlines() if line[:2] != "0,"),
        "has no steps of decodes alone",
    ),
    (
        "layer_profile",
        "dense.csv",
        lambda text: text.replace("embedding,64,2000\n", ""),
        "layer embedding has no row of 64 tokens",
    ),
    (
        "layer_profile",
        "attention.csv",
        lambda text: "\n".join(line for line in text.splitlines() if line[:2] != "0,"),
        "has no rows of decodes alone",
    ),
    (
        "vidur",
        "layers.csv",
        lambda text: text.replace(",0,1,", ",0,4,"),
        "no rows of tensor_parallel_size 1; tp_size has 4",
    ),
    (
        "vidur",
        "layers.csv",
        lambda text: text.replace("lm_head", "head"),
        "has no rows of layer lm_head",
    ),
    (
        "vidur",
        "attention.csv",
        lambda text: "\n".join(line for line in text.splitlines() if ",True," not in line),
        "attention.csv: has no rows of prompts",
    ),
    (
        "vidur",
        "attention.csv",
        lambda text: "\n".join(line for line in text.splitlines() if ",False," not in line),
        "attention.csv: has no rows of decodes",
    ),
    (
        "vidur",
        "attention.csv",
        lambda text: text.replace("\n1,0,16,1,False,,", "\n1,0,16,1,False,,,"),
        "attention.csv:10: a row must have 7 columns, got 8",
    ),
    (
        "vidur",
        "attention.csv",
        lambda text: text.replace(",True,", ",False,", 1),
        "line 2: time must be a number >= 0, got an empty cell",
    ),
]


@pytest.mark.parametrize(("form", "file", "change", "message"), BAD)
def test_file_that_is_no_such_table_is_refused(tmp_path, form, file, change, message):
    path = written(tmp_path, form)
    broken = tmp_path / file
    broken.write_text(change(broken.read_text()))
    with pytest.raises(ScenarioError, match=message) as caught:
        table(path, form)
    assert file in str(caught.value)


def test_row_far_from_others_gives_no_negative_times(tmp_path):
    """The context of a row lost its last digits; carried on, others would take less than 0 s."""
    path = measured.write_steps(tmp_path)
    path.write_text(path.read_text().replace("\n0,0,64,524288,", "\n0,0,64,5242,"))
    broken, batch = table(path, "steps"), StepBatch((), 3, 120)
    message = "steps.csv: a step of 0 prompt tokens and 3 decodes would take -0.035.* correct it"
    with pytest.raises(ScenarioError, match=message):
        broken.step_time(batch)
    with pytest.raises(ScenarioError, match=message):
        broken.run(batch, StepGrowth(3), 2)


def test_names_that_are_numbers_are_names(tmp_path):
    path = measured.write_splitwise(tmp_path)
    path.write_text(path.read_text().replace("\nm,a,", "\n1,2,").replace("\nm,b,", "\n1,,"))
    assert table(path, "splitwise", "1/2").step_time(StepBatch((), 1, 64)) > 0
    with pytest.raises(ScenarioError, match="subset has no 'm/a'. Known: 1/, 1/2"):
        table(path, "splitwise", "m/a")


def test_names_and_paths_are_checked(tmp_path):
    with pytest.raises(ScenarioError, match="subset must be left out with format steps, .* 'm/a'"):
        table("steps.csv", "steps", "m/a")
    with pytest.raises(ScenarioError, match="format has no 'step'; did you mean 'steps'"):
        table(tmp_path, "step")
    with pytest.raises(ScenarioError, match="no such file"):
        table(tmp_path / "none.csv", "steps")
    with pytest.raises(ScenarioError, match="must be a folder"):
        table(measured.write_steps(tmp_path), "vidur")


def test_the_share_of_extrapolated_steps_is_in_summary(tmp_path):
    measured.write_steps(tmp_path)
    (tmp_path / "scenario.yaml").write_text(
        """
model: llama-3.1-8b
workload:
  lengths:
    type: synthetic
    num_requests: 4
    prompt: {type: fixed, tokens: 8000}
    output: {type: fixed, tokens: 500}
  arrivals: {type: poisson, rate: 1 /s}
clients:
  - name: llm
    gpu: h100-sxm
    predictor: {type: table, format: steps, path: steps.csv}
"""
    )
    result = mist.simulate(mist.Scenario.load(tmp_path / "scenario.yaml"))
    assert result.summary["estimates"] == {"llm": "measured"}
    runs = result.steps
    outside = runs["num_extrapolated"].sum() / runs["num_steps"].sum()
    assert 0 < outside < 1
    assert result.summary["extrapolated_step_fraction"] == outside
    decodes = runs[runs["num_decodes"] > 0]
    means = decodes["context_sum"] / decodes["num_decodes"]
    inside = decodes[means + decodes["num_steps"] <= 8_192]
    assert not inside[inside["num_chunks"] == 0]["num_extrapolated"].any()


@pytest.mark.parametrize("name", ["mixtral-8x7b", "gpt-oss-120b"])
def test_layers_of_other_kinds_are_refused(tmp_path, name):
    path = measured.write_layer_profile(tmp_path, 32)
    with pytest.raises(ScenarioError, match="no times for what .* has, .*; measure whole steps"):
        TablePredictor(mist.load_model(name), ONE, str(path), "layer_profile")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("interconnect.bandwidth = '100 GB/s'", ""),
        ("memory = '141 GB'", ""),
        ("memory_bandwidth = '5 TB/s'", "memory_bandwidth of mine must be that of h100-sxm"),
        ("flops.fp8 = '3 PFLOP/s'", "flops of mine must be that of h100-sxm"),
    ],
)
@pytest.mark.parametrize("form", ["steps", "layer_profile"])
def test_other_rates_than_measured_need_a_scale(tmp_path, form, text, problem):
    file = tmp_path / "mine.toml"
    file.write_text(f'based_on = "h100-sxm"\n{text}\n')
    if form == "steps":
        path = measured.write_steps(tmp_path)
    else:
        path = measured.write_layer_profile(tmp_path, MODEL.num_layers)
        (path / "meta.yaml").write_text("hardware: h100-sxm\n")
    timed = partial(TablePredictor, path=str(path), format=form)
    asked = {"model": MODEL, "gpu": str(file), "predictor": timed}
    if not problem:
        mist.llm_client("a", **asked)
        return
    with pytest.raises(ScenarioError, match=f"{problem}.*set step_time_scale"):
        mist.llm_client("a", **asked)
    mist.llm_client("a", **asked, step_time_scale=0.8)


def test_a_gpu_file_based_on_another_than_the_measured_one_is_refused(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text('based_on = "l40s"\n')
    path = measured.write_steps(tmp_path)
    with pytest.raises(ScenarioError, match="gpu must be what the client has, l40s, got h100-sxm"):
        TablePredictor(MODEL, mist.Cluster(mist.load_gpu(str(file))), str(path), "steps")


@pytest.mark.parametrize(
    ("meta", "counts"),
    [
        ("skew_profile:\n  enabled: true\nskew_fit:\n  enabled: true  # fitted\n", True),
        ("model: llama-3.1-8b\nskew_profile:\n  enabled: false\n", False),
        ("skew_fit:\n  method: wls\n  enabled: False\n  per_tp:\n    enabled: true\n", False),
        ("other:\n  enabled: false\n", True),
    ],
)
def test_flags_of_profile_say_whether_uneven_decodes_count(tmp_path, meta, counts):
    path = measured.write_layer_profile(tmp_path, MODEL.num_layers)
    (path / "meta.yaml").write_text("skew_fit:\n  enabled: maybe\n")
    with pytest.raises(ScenarioError, match="skew_fit.enabled must be true or false, got 'maybe'"):
        table(path, "layer_profile")
    (path / "meta.yaml").write_text(meta)
    found = table(path, "layer_profile")
    assert found.traits.needs_longest_context == counts
    even, uneven = (StepBatch((), 8, 8 * 500, None, longest) for longest in (500, 1_000))
    assert (found.step_time(uneven) > found.step_time(even)) == counts


# --- experts ------------------------------------------------------------------------------------

EXPERTS = mist.load_model("qwen3-30b-a3b")  # 128 experts, 8 for each token
H100 = mist.load_gpu("h100-sxm")


def expert_table(folder, **cluster):
    path = folder / f"tp{cluster.get('tensor_parallel_size', 1)}"
    path.mkdir(exist_ok=True)
    measured.write_layer_profile(path, EXPERTS.num_layers)
    measured.write_experts(path, EXPERTS.num_layers)
    return TablePredictor(EXPERTS, mist.Cluster(H100, **cluster), str(path), "layer_profile")


def reached(tokens):
    """Of 128 experts, each token misses one with probability 120 / 128."""
    return 128 * (1 - (120 / 128) ** tokens)


@pytest.mark.parametrize("tokens", [1, 8, 64, 512])
def test_experts_by_tokens_and_experts_that_they_reach(tmp_path, tokens):
    batch = StepBatch((), tokens, tokens * 512)
    expected = measured.step_s(0, 0, tokens, 512) + measured.experts_s(tokens, reached(tokens))
    assert expert_table(tmp_path).step_time(batch) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("tokens", [3, 20, 100, 700])
def test_experts_between_the_points(tmp_path, tokens):
    batch = StepBatch(((tokens, 0),))
    expected = measured.step_s(tokens, 0, 0, 0) + measured.experts_s(tokens, reached(tokens))
    assert expert_table(tmp_path).step_time(batch) == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize("imbalance", [1.0, 1.5])
@pytest.mark.parametrize("tokens", [8, 64])
def test_experts_spread_over_four_replicas(tmp_path, tokens, imbalance):
    """A rank has a quarter of the experts, and of the tokens of all four, or 1.5 times that."""
    spread = expert_table(
        tmp_path, data_parallel_size=4, enable_expert_parallel=True, expert_load_imbalance=imbalance
    )
    batch = StepBatch((), tokens, tokens * 512)
    expected = measured.step_s(0, 0, tokens, 512)
    expected += measured.experts_s(tokens * imbalance, EXPERTS.moe.on_busiest_rank(4 * tokens, 4))
    gathered = 4 * tokens * EXPERTS.hidden_size * EXPERTS.dtype_bytes
    expected += 2 * EXPERTS.num_layers * all_gather(H100.interconnect, 4)(gathered)
    assert spread.step_time(batch) == pytest.approx(expected, rel=1e-9)


def test_replicas_without_shared_experts_are_engines_of_their_own(tmp_path):
    batch = StepBatch(((300, 0),), 7, 7_000)
    alone, beside = (expert_table(tmp_path, data_parallel_size=size) for size in (1, 2))
    assert alone.step_time(batch) == beside.step_time(batch)


def test_a_replica_without_work_computes_one_token(tmp_path):
    found = expert_table(tmp_path, data_parallel_size=2, enable_expert_parallel=True)
    one = StepBatch((), 1, 1)
    idle = found.step_time(StepBatch())
    assert 0 < idle < found.step_time(one)
    assert (found.run(StepBatch(), StepGrowth(), 5_000) == idle).all()


def test_tables_with_experts_keep_the_bits_of_runs(tmp_path):
    spread = {"data_parallel_size": 2, "enable_expert_parallel": True}
    for cluster in ({}, {"tensor_parallel_size": 2}, spread):
        check_predictor(lambda cluster=cluster: expert_table(tmp_path, **cluster))


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        (["1,1,8,30", "1,8,129,40"], "line 3: activated_experts must be >= 1 and <= 128, .*, got"),
        (["1,1,8,30", "1,8,0,40"], "line 3: activated_experts must be >= 1 and <= 128, .*, got 0"),
        (["1,1,8,30", "1,0,1,40"], "line 3: tokens must be >= 1, got 0"),
        (["1,1,8,30", "1,8,few,40"], "line 3: activated_experts must be a number >= 0, got 'few'"),
        (  # half of the 128 lie on each of two ranks
            ["1,8,128,40", "2,8,64,40", "2,64,65,80"],
            "line 4: activated_experts must be >= 1 and <= 64, .*, got 65",
        ),
    ],
)
def test_rows_of_experts_that_cannot_be_are_refused(tmp_path, rows, problem):
    expert_table(tmp_path)
    file = tmp_path / "tp1" / "moe.csv"
    file.write_text("\n".join(["ep,tokens,activated_experts,time_us", *rows]))
    with pytest.raises(ScenarioError, match=f"moe.csv: {problem}"):
        TablePredictor(EXPERTS, mist.Cluster(H100), str(tmp_path / "tp1"), "layer_profile")
    file.unlink()
    with pytest.raises(ScenarioError, match=r"experts, which no moe.csv times"):
        TablePredictor(EXPERTS, mist.Cluster(H100), str(tmp_path / "tp1"), "layer_profile")


def test_experts_profiled_by_the_ranks_that_share_them(tmp_path):
    """With `ep` a rank is given all tokens, each for its share of the experts; as LLMServingSim."""
    expert_table(tmp_path)
    folder = tmp_path / "tp1"
    rows = [
        f"{ep},{tokens},{activated},{measured.experts_s(tokens / ep, activated) * 1e6!r}"
        for ep, activations in ((1, (8, 32, 128)), (4, (2, 8, 32)))
        for tokens in (1, 8, 64, 512, 4096)
        for activated in activations
    ]
    (folder / "moe.csv").write_text("\n".join(["ep,tokens,activated_experts,time_us", *rows]))
    spread = {"data_parallel_size": 4, "enable_expert_parallel": True}
    batch = StepBatch((), 64, 64 * 512)
    found = TablePredictor(EXPERTS, mist.Cluster(H100, **spread), str(folder), "layer_profile")
    layers = EXPERTS.num_layers
    expected = measured.step_s(0, 0, 64, 512)
    expected += layers * measured.experts_s(64, EXPERTS.moe.on_busiest_rank(4 * 64, 4))
    gathered = 4 * 64 * EXPERTS.hidden_size * EXPERTS.dtype_bytes
    expected += 2 * layers * all_gather(H100.interconnect, 4)(gathered)
    assert found.step_time(batch) == pytest.approx(expected, rel=1e-9)
    spread["data_parallel_size"] = 2
    with pytest.raises(ScenarioError, match=r"no rows of ep 2, the ranks .*; it has 1, 4: profile"):
        TablePredictor(EXPERTS, mist.Cluster(H100, **spread), str(folder), "layer_profile")


def test_the_newer_columns_of_attention_are_read(tmp_path):
    """`prefill_key` is the tokens before a prompt and half of its own; drafts are left out."""
    measured.write_layer_profile(tmp_path, MODEL.num_layers)
    batches = [StepBatch(((512, 700),), 8, 8_000), StepBatch((), 8, 8_000), StepBatch(((300, 0),))]
    older = TablePredictor(MODEL, mist.Cluster(H100), str(tmp_path), "layer_profile")
    file = tmp_path / "attention.csv"
    rows = pd.read_csv(file)
    rows["prefill_key"] = rows.pop("kv_prefill") + rows["prefill_chunk"] / 2
    drafts = rows[rows["n_decode"] > 0].assign(decode_q_len=4, time_us=1e6)
    pd.concat([rows.assign(decode_q_len=1), drafts]).to_csv(file, index=False)
    newer = TablePredictor(MODEL, mist.Cluster(H100), str(tmp_path), "layer_profile")
    for batch in batches:
        assert newer.step_time(batch) == older.step_time(batch)


# --- what is remembered of prompts --------------------------------------------------------------


@pytest.mark.parametrize("name", ["steps", "layer_profile", "vidur"])
def test_prompts_that_are_remembered_take_what_new_ones_take(forms, name, tmp_path, monkeypatch):
    batches = [
        StepBatch(((50 + new, 10 * new), (300, 0)), n, n * mean, None, 2 * mean)
        for new in range(5)
        for n in (1, 8, 40)
        for mean in (20, 700, 9_000)
    ]
    plain = [forms[name].step_time(batch) for batch in batches]
    monkeypatch.setattr(table_module, "_MOST_KNOWN", 3)
    monkeypatch.setattr(table_module, "_MOST_LINES", 2)
    found = forms[name]
    found._known.clear()
    assert [found.step_time(batch) for batch in batches * 2] == plain * 2
    assert [found.run(batch, StepGrowth(), 1).item() for batch in batches] == plain
    assert len(found._known) <= 3
    assert all(len(prompts.lines) <= 2 for prompts in found._known.values())
