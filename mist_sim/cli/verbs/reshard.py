"""`mist reshard`: which layouts to prefill and decode in, by Seesaw's appendix A."""

from __future__ import annotations

import typer

from mist_sim.cli.session import Session, saves


@saves(resumes=False)
def reshard(
    session: Session,
    model: str = typer.Option(..., help="The model, one of mist list models or a path."),
    gpu: str = typer.Option(..., help="The GPU, one of mist list gpus or a path."),
    gpus: int = typer.Option(..., metavar="N", help="GPUs that serve the model together."),
    input_len: float = typer.Option(..., metavar="N", help="Mean tokens of a prompt."),
    output_len: float = typer.Option(..., metavar="N", help="Mean tokens of an answer."),
    dp: str | None = typer.Option(
        None, metavar="N,N,...", help="Data parallel sizes; by default all that the GPUs allow."
    ),
    max_num_seqs: int = typer.Option(256, metavar="N", help="Requests of a copy at a time."),
    host_memory: str = typer.Option(
        "80 GiB", metavar="SIZE", help="Host memory for KV entries, for each GPU."
    ),
    host_bandwidth: str | None = typer.Option(
        None,
        metavar="RATE",
        help="Bandwidth of a GPU's link to the host, such as 16 GiB/s; by default the GPU's own.",
    ),
    host: str | None = typer.Option(
        None,
        metavar="HOST",
        help="Host of GPUs on PCIe, as clients.N.host has it; by default the slow one that "
        "simulated engines assume.",
    ),
    link_bandwidth: str | None = typer.Option(
        None,
        metavar="RATE",
        help="Bandwidth of a GPU's link to the others, instead of the GPU's and its host's own.",
    ),
    gpu_memory_utilization: float | None = typer.Option(
        None, help="Share of the GPU memory to use; by default that of the newest vLLM."
    ),
    piggyback: float = typer.Option(
        0.0,
        help="Share of the decodes' weight loading that chunked prefill hides, for layouts "
        "that do not change.",
    ),
) -> None:
    """Rank pairs of layouts: one for prompts, one for answers (Seesaw's model re-sharding).

    All (tensor, pipeline, data) sizes that fit on the GPUs are paired, and timed by equation 1 of
    the paper's appendix A, beside layouts that stay. Nothing is simulated.
    """
    from mist_sim.cli.lists import whole_numbers
    from mist_sim.hardware import GPU_MEMORY_UTILIZATION, load_gpu, load_host
    from mist_sim.hardware.resharding import device_of
    from mist_sim.models import load_model
    from mist_sim.search.resharding import Lengths, PairOptions, rank_pairs
    from mist_sim.units import BANDWIDTH, SIZE

    said = gpu_memory_utilization
    device = device_of(
        load_gpu(gpu),
        gpu_memory_utilization=GPU_MEMORY_UTILIZATION if said is None else said,
        link_bandwidth=BANDWIDTH.parse(link_bandwidth) if link_bandwidth else None,
        host_bandwidth=BANDWIDTH.parse(host_bandwidth) if host_bandwidth else None,
        host=load_host(host) if host else None,
    )
    options = PairOptions(
        data_parallel_sizes=whole_numbers(dp, "--dp") if dp else None,
        max_num_seqs=max_num_seqs,
        host_memory=SIZE.parse(host_memory),
        piggyback=piggyback,
    )
    lengths = Lengths(input_len, output_len)
    session.search(lambda how: rank_pairs(load_model(model), device, gpus, lengths, options))
