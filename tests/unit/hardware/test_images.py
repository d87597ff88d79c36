"""Images: tokens as publishers' processors count them, sizes of towers, and laws of their times."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mist_sim as mist
from mist_sim import Scenario, ScenarioError, simulate
from mist_sim.clients.engine import stepped
from mist_sim.clients.image_encoder import ImageEncoderClient
from mist_sim.core.batch import StepBatch
from mist_sim.core.request import Image, Images
from mist_sim.hardware import Cluster, load_gpu
from mist_sim.hardware.devices import kernel_of
from mist_sim.hardware.predictors import RooflinePredictor
from mist_sim.hardware.predictors.analytic.compile import Phase
from mist_sim.hardware.predictors.tower_times import (
    TowerTimes,
    computed_head,
    tower_attention,
    tower_bytes,
)
from mist_sim.models import load_model
from mist_sim.models.vision import ImagesConfig
from mist_sim.rng import Streams
from mist_sim.traces.prompt_images import ImageLaw, PromptImages
from mist_sim.traces.readers.tabular_reader import AzureReader
from tests.effort import examples
from tests.refusals import refused
from tests.warned import texts
from tools.kernels.kernel_fit import fit_kernel
from tools.kernels.tower_rows import tower_rows

QWEN = load_model("qwen3.5-27b")
SIZES = {"1024x768": 1}


def run(client=None, pipeline=("prefill", "decode"), more=(), workload=None, **changes):
    images = {"sizes": SIZES, "numbers": {1: 1}} | changes
    lengths = {"type": "synthetic", "num_requests": 1}
    lengths |= {name: {"type": "fixed", "tokens": 100} for name in ("prompt", "output")}
    said = {"lengths": lengths, "arrivals": {"type": "constant", "rate": "1 /s"}}
    said |= {"images": images, "pipeline": list(pipeline)} | (workload or {})
    llm = {"name": "llm", "gpu": "h100-sxm", "tensor_parallel_size": 2} | (client or {})
    scenario = {"model": "qwen3.5-27b", "workload": said, "clients": [llm, *more]}
    return simulate(Scenario.from_dict(scenario))


@pytest.mark.parametrize(
    ("model", "counts"),
    [
        # tokens of 1024 x 768, 1920 x 1080, 224 x 224 and 200 x 3000 pixels, as `smart_resize`,
        # `get_aspect_ratio_preserving_size` and `get_best_fit` of transformers 5.24 count them, and
        # `navit_resize_image` of vLLM 0.33; 144 a tile of Llama 4
        ("qwen3.5-27b", (768, 2_040, 64, 564)),
        ("gemma-4-31b-it-nvfp4", (14 * 19, 12 * 22, 16 * 16, 4 * 64)),
        ("llama-4-scout-17b-16e-instruct", (13 * 144, 16 * 144, 144, 10 * 144)),
        ("kimi-k2.5", (1_036, 2_691, 64, 864)),
        ("gemma-3-27b", (256, 256, 256, 256)),
    ],
)
def test_tokens_are_those_of_the_publishers_processors(model, counts):
    tower = load_model(model).vision
    sizes = ((768, 1024), (1080, 1920), (224, 224), (3000, 200))
    assert tuple(tower.image(*size).tokens for size in sizes) == counts


@examples(100)
@given(
    st.sampled_from(["qwen3.5-27b", "gemma-4-31b-it-nvfp4", "llama-4-scout-17b-16e-instruct"]),
    st.integers(20, 8_000),
    st.integers(20, 8_000),
)
def test_patches_are_whole_squares_of_tokens(name, height, width):
    tower = load_model(name).vision
    image = tower.image(height, width)
    assert image.parts * image.patches == image.tokens * tower.merge**2
    assert image.tokens >= 1


def test_parameters_of_siglip():
    """417 M without what connects it (arXiv 2503.19786, table 1)."""
    tower = load_model("gemma-3-27b").vision
    inputs, outputs = tower.products[0]
    assert (tower.num_parameters - inputs * outputs) / 1e6 == pytest.approx(417, rel=0.01)


@examples(60)
@given(
    number=st.integers(1, 9),
    tokens=st.integers(1, 700),
    cuts=st.lists(st.integers(1, 7_000), max_size=8),
)
def test_each_image_is_reached_once(number, tokens, cuts):
    images = Images(number, Image(4 * tokens, tokens))
    places = sorted({0, *cuts, images.num_tokens + 10})
    reached = [images.reached(a, b) for a, b in pairwise(places)]
    assert sum(reached) == number


def test_the_first_token_waits_for_the_tower():
    """All else is the same as with a prompt of text of as many tokens."""
    times = TowerTimes("q", QWEN.vision, Cluster(load_gpu("h100-sxm"), 2))
    image = QWEN.vision.image(768, 1024)
    with_image = run({"images": {}}).summary
    lengths = {"type": "synthetic", "num_requests": 1, "output": {"type": "fixed", "tokens": 100}}
    lengths["prompt"] = {"type": "fixed", "tokens": 100 + image.tokens}
    text = run(workload={"lengths": lengths, "images": None}).summary
    more = 1e3 * times.seconds([image])
    assert with_image["mean_ttft_ms"] - text["mean_ttft_ms"] == pytest.approx(more, rel=1e-6)
    assert with_image["mean_tpot_ms"] == pytest.approx(text["mean_tpot_ms"])


MEASURED = pd.DataFrame(
    [
        (number, patches, heads, size, 1.0)
        for number in (1, 4, 64)
        for patches in (64, 576, 4096, 30_000)
        for heads in (2, 16)
        for size in (64, 72, 80, 104)
    ],
    columns=["batch_size", "isl", "num_heads", "head_dim", "latency"],
)


@pytest.mark.parametrize("name", ["h100-sxm", "b200", "b300", "l40s", "rtx-pro-6000"])
def test_towers_are_timed_as_rows_that_were_fitted(name):
    gpu = load_gpu(name)
    kernel = gpu.kernels["tower_attention"]
    figures = {each: getattr(kernel, each) for each in ("floor", "mfu", "serial")}
    figures |= {"per_pair": kernel.per_pair, "padding": kernel.padding}
    expected = tower_rows(MEASURED, gpu).times(figures)
    phase = Phase(gpu, gpu.prefill)
    found = [
        tower_attention(phase, 1, row.num_heads, row.head_dim).of_step(
            0.0, [(row.isl, 0)] * row.batch_size
        )
        for row in MEASURED.itertuples()
    ]
    assert found == pytest.approx(expected.tolist(), rel=1e-9)


def test_a_fit_finds_the_figures_of_towers():
    gpu = load_gpu("h100-sxm")
    made = {"floor": 9e-6, "mfu": 0.8, "serial": 4e-6, "per_pair": 150.0, "padding": 600.0}
    seconds = tower_rows(MEASURED, gpu).times(made)
    found = fit_kernel(tower_rows(MEASURED.assign(latency=1e3 * seconds), gpu))
    assert found.values == pytest.approx(made, rel=0.02)
    assert set(found.values) == set(made)
    few = tower_rows(MEASURED.assign(isl=np.where(MEASURED["isl"] == 64, 63, 576)), gpu)
    assert len(few) == len(MEASURED) * 3 // 4


def test_heads_of_towers_are_padded():
    """72 values cost as much as 96, and more than 64."""
    gpu = load_gpu("h100-sxm")
    seconds = [
        tower_attention(Phase(gpu, gpu.prefill), 1, 16, size).of_step(0.0, [(4096, 0)])
        for size in (32, 64, 72, 96, 97, 128, 129, 192)
    ]
    assert seconds[0] == seconds[1] < seconds[2] == seconds[3] < seconds[4]
    assert seconds[4] == seconds[5] < seconds[6] == seconds[7]
    assert computed_head(np.array([72, 256, 320])).tolist() == [96, 256, 320]


def test_attention_of_towers_may_be_measured():
    """A source's times take the place of the roofline's, of layers, ranks and images alike."""
    asked = []

    def measured(*sizes):
        asked.append(sizes)
        return 1e-3

    cluster = Cluster(load_gpu("h100-sxm"), 2)
    image = QWEN.vision.image(768, 1024)
    own = TowerTimes("q", QWEN.vision, cluster)
    times = TowerTimes("q", QWEN.vision, cluster, measured=measured)
    heads, layers = QWEN.vision.num_heads // 2, QWEN.vision.num_layers
    three = [image] * 3
    more = times.seconds(three) - own.seconds(three)
    alone = tower_attention(Phase(cluster.gpu, cluster.gpu.prefill), layers, heads, 72)
    expected = layers * 1e-3 - alone.of_step(0.0, [(image.patches, 0)] * 3)
    assert more == pytest.approx(expected, rel=1e-6)
    assert asked[-1] == (heads, 72, 3, image.patches)
    assert not times.assumed


def test_unlike_images_share_what_as_many_equal_ones_take():
    """Exact where times are a line in the number of images; never less than some of them take."""
    cluster, large, small = Cluster(load_gpu("h100-sxm")), Image(4096, 1024), Image(256, 64)
    layers = QWEN.vision.num_layers

    def more(measured, images):
        """Seconds of a layer's attention: those beyond a source by which it takes one second."""
        second = TowerTimes("q", QWEN.vision, cluster, measured=lambda *_: 1.0)
        times = TowerTimes("q", QWEN.vision, cluster, measured=measured)
        return 1.0 + (times.seconds(images) - second.seconds(images)) / layers

    def line(_heads, _head_dim, images, patches):
        return 1.0 + images * patches * patches * 1e-6

    expected = 1.0 + (2 * 4096**2 + 256**2) * 1e-6
    assert more(line, [large, small, large]) == pytest.approx(expected)

    def whole_waves(_heads, _head_dim, images, patches):
        """Two images take no longer than one."""
        return -(-images // 2) * patches * 1e-3

    assert more(whole_waves, [large, small]) == pytest.approx(4.096)
    assert more(whole_waves, [large, large, small]) == pytest.approx((4 * 4.096 + 2 * 0.256) / 3)


SMALL_AND_LARGE = {64: 0, 256: 1, 4096: 2}


@examples(200)
@given(
    st.lists(st.floats(1e-6, 1.0), min_size=18, max_size=18),
    st.lists(st.sampled_from(list(SMALL_AND_LARGE)), min_size=1, max_size=5),
    st.sampled_from(list(SMALL_AND_LARGE)),
    st.booleans(),
)
def test_another_image_never_shortens_a_pass(noise, sizes, other, is_spread):
    """Whatever was measured."""

    def measured(_heads, _head_dim, images, patches):
        return noise[3 * (images - 1) + SMALL_AND_LARGE.get(patches, 0)]

    cluster = Cluster(load_gpu("h100-sxm"), 2)
    times = TowerTimes("q", QWEN.vision, cluster, is_spread=is_spread, measured=measured)
    images = [Image(size, size // 4) for size in sizes]
    longer = times.seconds([*images, Image(other, other // 4)])
    assert longer >= times.seconds(images) * (1 - 1e-12)


def test_heads_without_a_table_are_timed_and_named():
    def measured(*sizes):
        raise ScenarioError(f"no times of {sizes}")

    tower, cluster = load_model("llama-4-scout-17b-16e-instruct").vision, Cluster(load_gpu("b200"))
    times = TowerTimes("s", tower, cluster, measured=measured)
    image = tower.image(336, 336)
    assert times.seconds([image]) == TowerTimes("s", tower, cluster).seconds([image])
    sizes = f"({tower.num_heads}, 88, 1, 1024)"
    said = f"images: their attention is the roofline's, as no times of {sizes}"
    assert times.assumed == (said,)

    class Source(RooflinePredictor):
        @property
        def traits(self):
            return replace(super().traits, tower_attention=measured)

    sizes = {"gpu": "b200", "tensor_parallel_size": 8, "predictor": Source}
    model = "llama-4-scout-17b-16e-instruct"
    client = mist.llm_client("llm", model=model, images=ImagesConfig(), **sizes)
    (of_split,) = [each for each in client.traits.times.assumed if "no times of" in each]
    assert of_split == said.replace(f"({tower.num_heads}", f"({tower.num_heads // 8}")


def test_only_towers_have_their_kernels():
    """GPUs without figures of towers take those of prompts, and so does a text in an encoder."""
    a100 = load_gpu("a100-80gb-sxm")
    assert kernel_of(a100.kernels, "tower_attention") == a100.kernels["prefill_attention"]
    encoder = load_model("bge-reranker-v2-m3")
    timed = RooflinePredictor(encoder, Cluster(load_gpu("h100-sxm")))
    kernels = {each.kernel for each in timed.explain(StepBatch(((512, 0),)))}
    assert "prefill_attention" in kernels
    assert "tower_attention" not in kernels


def test_each_gpu_may_have_the_whole_tower():
    cluster = Cluster(load_gpu("h100-sxm"), 8)
    image = QWEN.vision.image(1080, 1920)
    split = TowerTimes("q", QWEN.vision, cluster)
    spread = TowerTimes("q", QWEN.vision, cluster, is_spread=True)
    one = TowerTimes("q", QWEN.vision, Cluster(load_gpu("h100-sxm"), 1))
    assert spread.seconds([image] * 8) == one.seconds([image]) < split.seconds([image] * 8)
    assert spread.seconds([image] * 9) == one.seconds([image] * 2)
    assert split.seconds([image]) < one.seconds([image])
    whole, slices = tower_bytes(QWEN.vision, 1), tower_bytes(QWEN.vision, 8)
    assert whole == 8 * slices == 2 * QWEN.vision.num_parameters
    found = [
        run({"images": {"mm_encoder_tp_mode": mode}}, numbers={4: 1}).summary["mean_ttft_ms"]
        for mode in ("weights", "data")
    ]
    assert found[0] != found[1]


@pytest.mark.parametrize(
    ("model", "gb"), [("qwen3.5-27b", 0.92), ("gemma-3-27b", 0.85), ("mistral-small-3.1-24b", 0.93)]
)
def test_the_tower_takes_memory_unless_left_out(model, gb):
    """Gemma 3: 417 M parameters of SigLIP and 6 M behind it; Mistral 3.1: some 460 M."""
    loaded, left_out = (
        mist.llm_client("llm", model=model, gpu="h100-sxm", language_model_only=only)
        for only in (False, True)
    )
    lost = left_out.memory.num_blocks - loaded.memory.num_blocks
    assert lost == pytest.approx(gb * 1e9 / loaded.kv_block_bytes, rel=0.02)


def test_results_say_what_a_loaded_tower_takes():
    scenario = {"model": "gemma-3-4b", "clients": [{"name": "llm", "gpu": "h100-sxm"}]}
    lengths = {"type": "synthetic", "num_requests": 1}
    lengths |= {name: {"type": "fixed", "tokens": 9} for name in ("prompt", "output")}
    scenario["workload"] = {"lengths": lengths, "arrivals": {"type": "constant", "rate": "1 /s"}}
    said, left_out = (
        texts(simulate(Scenario.from_dict(scenario, overrides=overrides)).summary, "towers")
        for overrides in ({}, {"clients.0.language_model_only": True})
    )
    assert "0.839 GB" in said[0]
    assert "language_model_only" in said[0]
    assert left_out == []


def test_prompts_in_pieces_encode_what_they_reach(monkeypatch):
    """Steps one by one, and many at a time, give the same times."""
    client = {"images": {}, "scheduler": {"type": "chunked", "max_num_batched_tokens": 512}}
    lengths = {"type": "synthetic", "num_requests": 12}
    lengths |= {name: {"type": "fixed", "tokens": 300} for name in ("prompt", "output")}
    workload = {"lengths": lengths, "arrivals": {"type": "constant", "rate": "33 /s"}}
    found = run(client, workload=workload, numbers={0: 1, 1: 1, 5: 1})
    monkeypatch.setattr(stepped, "FAST_FORWARD", False)
    single = run(client, workload=workload, numbers={0: 1, 1: 1, 5: 1})
    assert single.requests["finished_at"].to_list() == found.requests["finished_at"].to_list()
    assert single.requests["first_token_at"].to_list() == found.requests["first_token_at"].to_list()


def test_encoders_apart():
    """The engine has neither tower nor its time; the encoder's GPU draws power and costs."""
    encoder = {"name": "eyes", "type": "image_encoder", "model": "qwen3.5-27b", "gpu": "l40s"}
    stages = ("encode_images", "prefill", "decode")
    apart = run(pipeline=stages, more=[encoder])
    rows = apart.stages.set_index("stage")
    image = QWEN.vision.image(768, 1024)
    pass_time = TowerTimes("q", QWEN.vision, Cluster(load_gpu("l40s"), 1)).seconds([image])
    spent = rows.loc["encode_images", "finished_at"] - rows.loc["encode_images", "started_at"]
    assert spent == pytest.approx(pass_time)
    slow = run(pipeline=stages, more=[encoder | {"bandwidth": "1 GB/s"}])
    more = 1e3 * image.tokens * 2 * QWEN.hidden_size / 1e9
    taken = slow.summary["mean_ttft_ms"] - apart.summary["mean_ttft_ms"]
    assert taken == pytest.approx(more, rel=1e-6)
    watts = ImageEncoderClient("eyes", model="qwen3.5-27b", gpu="l40s").traits.machine
    assert watts is not None
    assert watts.num_gpus == 1
    tracks = apart.recorder.steps
    assert any(track.columns()["num_prefill_tokens"].sum() == image.patches for track in tracks)
    nobody = run(pipeline=stages, more=[encoder], numbers={0: 1})
    assert "encode_images" not in set(nobody.stages["stage"])


def test_numbers_come_from_azures_trace(tmp_path):
    path = tmp_path / "trace.csv"
    rows = ["TIMESTAMP,NumImages,ContextTokens,GeneratedTokens"]
    rows += [f"2025-05-13 00:00:0{n}.0000000,{n},100,10" for n in (0, 2, 3)]
    path.write_text("\n".join(rows) + "\n")
    assert [row.num_images for row in AzureReader(path=str(path)).rows()] == [0, 2, 3]
    trace = {"type": "azure", "path": str(path)}
    workload = {"trace": trace, "lengths": None, "arrivals": {"type": "trace"}}
    found = run({"images": {}}, workload=workload, numbers=None).requests
    assert found["num_prompt_tokens"].to_list() == [100, 100 + 2 * 768, 100 + 3 * 768]
    path.write_text(rows[0] + "\n2025-05-13 00:00:00.0000000,-1,100,10\n")
    with pytest.raises(mist.TraceError, match="NumImages must be a whole number"):
        list(AzureReader(path=str(path)).rows())


def test_shares_of_sizes_and_numbers_are_kept():
    said = PromptImages(sizes={"64x64": 3, "1024x768": 1}, numbers={0: 1, 2: 1})
    law = ImageLaw(said, QWEN.vision)
    row = mist.TraceRow(10, 10)
    found = list(law.applied(iter([row] * 4_000), Streams(1).generator("images")))
    images = [each.images for each in found if each.images]
    assert len(images) == pytest.approx(2_000, rel=0.05)
    assert sum(each.each.tokens == 768 for each in images) == pytest.approx(500, rel=0.1)
    assert all(
        each.num_prompt_tokens == 10 + each.images.num_tokens for each in found if each.images
    )


test_what_cannot_be_is_said = refused(
    lambda changes: run(**changes),
    ({"client": {}}, "must have images"),
    ({"client": {"images": {}, "model": "llama-3.1-8b"}}, "no vision tower of it is known"),
    ({"client": {"images": {}}, "sizes": {"big": 1}}, "sizes: must be WIDTHxHEIGHT in pixels"),
    ({"client": {"images": {}}, "sizes": {"10x10": 0}}, "sizes.10x10 must be finite and > 0"),
    ({"client": {"images": {}}, "numbers": {}}, "must have at least one entry"),
    ({"client": {"images": {}}, "model": "llama-3.1-8b"}, "must have a vision tower"),
    ({"client": {"images": {}}, "workload": {"images": None}}, "no prompt has any"),
    ({"client": {"images": {"mm_encoder_tp_mode": "half"}}}, "must be 'weights' or 'data'"),
    ({"client": {"images": {}, "pipeline_parallel_size": 2}}, "pipeline_parallel_size: must be 1"),
    (
        {"pipeline": ("encode_images", "prefill", "decode"), "workload": {"images": None}},
        "is required with encode_images",
    ),
)


def test_encoders_say_what_they_cannot():
    with pytest.raises(ScenarioError, match="must have a vision tower that is known"):
        ImageEncoderClient("eyes", model="llama-3.1-8b", gpu="l4")
    with pytest.raises(ValueError, match="bandwidth must be finite and > 0"):
        ImageEncoderClient("eyes", model="qwen3.5-27b", gpu="l4", bandwidth=0.0)
