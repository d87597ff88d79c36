"""`mist explain`: one step of an engine, operator by operator; `mist reshard`: Seesaw's layouts."""

from __future__ import annotations

from collections.abc import Sequence

from mist_sim.cli.scenario_input import ScenarioName, Settings, keys_of, load, require_scenario
from mist_sim.cli.session import Once
from mist_sim.cli.values import quantity, whole_numbers
from mist_sim.errors import ScenarioError
from mist_sim.units import BANDWIDTH, DURATION, SIZE


def explain(
    scenario: ScenarioName = None,
    *,
    settings: Settings = (),
    commands: Sequence[str] = (),
    at: str | None = None,
    prompts: str | None = None,
    decodes: int = 0,
    context: int = 0,
    client: str | None = None,
    approximate: bool = False,
    allow_programs: bool = False,
    session: Once,
) -> None:
    """Take one step apart: what each operator takes, and what binds it.

    Either the step that runs --at a time, or one by hand: --prompts, --decodes and --context, for
    which the scenario needs no workload.

    at TIME: Explain the step at this time of the run, such as '12.5 s'.
    prompts NEW[@CONTEXT],...: Explain a step with these prompts, on each engine with
        data_parallel_size: new tokens, and those before them in the cache.
    decodes N: Answers that get a token in the step, on each engine with data_parallel_size.
    context N: Tokens that each of these answers has in the cache.
    client NAME: The client whose step is explained; by default, the first with an engine.
    """
    from mist_sim.explain import HandBatch, explain_batch, explain_moment
    from mist_sim.scenario.schema import Engines, Scenario

    require_scenario(scenario, commands)
    by_hand = prompts is not None or decodes or context
    if by_hand and at is not None:
        raise ScenarioError("--at must be left out with --prompts, --decodes and --context")
    if not by_hand and at is None:
        raise ScenarioError(
            "give the step: --at TIME of the run, or --prompts, or --decodes with --context"
        )
    batch = HandBatch.read(prompts, decodes, context) if by_hand else None
    overrides = keys_of(commands, settings, approximate=approximate)
    kind = Scenario if batch is None else Engines
    loaded = load(scenario, overrides, allow_programs=allow_programs, kind=kind)
    if batch is not None:
        found = session.search(lambda how: explain_batch(loaded, batch, client))
    else:
        time = quantity(at or "", DURATION, "--at")
        found = session.search(lambda how: explain_moment(loaded, time, client))
    if found.gpu is not None:
        session.note_undrawn("roofline.png")


def reshard(
    *,
    model: str,
    gpu: str,
    gpus: int,
    input_len: float,
    output_len: float,
    dp: str | None = None,
    max_num_seqs: int = 256,
    host_memory: str = "80 GiB",
    host_bandwidth: str | None = None,
    host: str | None = None,
    link_bandwidth: str | None = None,
    gpu_memory_utilization: float | None = None,
    piggyback: float = 0.0,
    session: Once,
) -> None:
    """Rank pairs of layouts: one for prompts, one for answers (Seesaw's model re-sharding).

    All (tensor, pipeline, data) sizes that fit on the GPUs are paired, and timed by equation 1 of
    the paper's appendix A, beside layouts that stay. Nothing is simulated.

    model: The model, one of mist list models or a path.
    gpu: The GPU, one of mist list gpus or a path.
    gpus N: GPUs that serve the model together.
    input_len N: Mean tokens of a prompt.
    output_len N: Mean tokens of an answer.
    dp N,N,...: Data parallel sizes; by default all that the GPUs allow.
    max_num_seqs N: Requests of a copy at a time.
    host_memory SIZE: Host memory for KV entries, for each GPU.
    host_bandwidth RATE: Bandwidth of a GPU's link to the host, such as 16 GiB/s; by default the
        GPU's own.
    host HOST: Host of GPUs on PCIe, as clients.N.host has it; by default the slow one that
        simulated engines assume.
    link_bandwidth RATE: Bandwidth of a GPU's link to the others, instead of the GPU's and its
        host's own.
    gpu_memory_utilization: Share of the GPU memory to use; by default that of the newest vLLM.
    piggyback: Share of the decodes' weight loading that chunked prefill hides, for layouts that do
        not change.
    """
    from mist_sim.hardware import GPU_MEMORY_UTILIZATION, load_gpu, load_host
    from mist_sim.hardware.resharding import device_of
    from mist_sim.models import load_model
    from mist_sim.search.resharding import Lengths, PairOptions, rank_pairs

    said = gpu_memory_utilization
    device = device_of(
        load_gpu(gpu),
        gpu_memory_utilization=GPU_MEMORY_UTILIZATION if said is None else said,
        link_bandwidth=BANDWIDTH.parse(link_bandwidth) if link_bandwidth else None,
        host_bandwidth=BANDWIDTH.parse(host_bandwidth) if host_bandwidth else None,
        host=load_host(host) if host else None,
    )
    options = PairOptions(
        data_parallel_sizes=whole_numbers(dp, "--dp") or None,
        max_num_seqs=max_num_seqs,
        host_memory=SIZE.parse(host_memory),
        piggyback=piggyback,
    )
    lengths = Lengths(input_len, output_len)
    session.search(lambda how: rank_pairs(load_model(model), device, gpus, lengths, options))
