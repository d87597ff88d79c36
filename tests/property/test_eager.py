"""Without CUDA graphs no step is faster: `enforce_eager` over models, GPUs, splits and batches."""

from hypothesis import assume, given
from hypothesis import strategies as st

from mist_sim.core.batch import StepBatch, StepGrowth
from mist_sim.hardware import Cluster, gpu_names, load_gpu
from mist_sim.hardware.predictors import RooflinePredictor
from mist_sim.models import load_model, model_names
from mist_sim.scenario.engines.step_times import with_graphs_up_to
from tests.effort import examples

RANKS = (1, 2, 4, 8)


@st.composite
def batches(draw: st.DrawFn) -> StepBatch:
    prompts = st.tuples(st.integers(1, 700), st.integers(0, 4000))
    chunks = draw(st.lists(prompts, max_size=3))
    decodes = draw(st.integers(0 if chunks else 1, 600))
    context = draw(st.integers(1, 4000))
    drafts = draw(st.sampled_from([0, 0, 1, 3]))
    return StepBatch(tuple(chunks), decodes, decodes * context, num_drafts=drafts)


@examples(300)
@given(
    model=st.sampled_from(model_names()).map(load_model),
    gpu=st.sampled_from(gpu_names()).map(load_gpu),
    ranks=st.sampled_from(RANKS),
    max_num_seqs=st.sampled_from([1, 8, 40, 256, 1024]),
    batch=batches(),
)
def test_no_step_is_faster_without_graphs(model, gpu, ranks, max_num_seqs, batch):
    assume(model.num_attention_heads % ranks == 0 and model.num_key_value_heads % ranks == 0)
    cluster, most = Cluster(gpu, ranks), min(2 * max_num_seqs, 512)
    replayed = with_graphs_up_to(most, RooflinePredictor(model, cluster))
    eager = with_graphs_up_to(most, RooflinePredictor(model, cluster, enforce_eager=True))
    assert eager.step_time(batch) >= replayed.step_time(batch)
    growth = StepGrowth(batch.num_decodes * (1 + batch.num_drafts))
    assert (eager.run(batch, growth, 5) >= replayed.run(batch, growth, 5)).all()
