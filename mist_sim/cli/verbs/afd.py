"""`mist afd`: how many attention workers an FFN worker should have."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from mist_sim.bounds import BUNDLE, NUMBER
from mist_sim.cli.options import option_of
from mist_sim.cli.values import given, quantity, whole_numbers
from mist_sim.cli.verbs.trace import by_settings, reader
from mist_sim.core import result_warnings as kinds
from mist_sim.core.result_warnings import ResultWarning
from mist_sim.errors import ScenarioError, brief
from mist_sim.units import BANDWIDTH, DURATION, SIZE

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from mist_sim.hardware import GpuSpec
    from mist_sim.hardware.afd import AfdCoefficients
    from mist_sim.models import ModelSpec
    from mist_sim.search import BundleChoice, BundleSpec, SlotLoad
    from mist_sim.search.afd import Prediction
    from mist_sim.traces import TraceRow

    Tokens = NDArray[np.int64]

Unit = Literal["s", "cycles"]
"""Units of coefficients and results."""

_CLOSED_FORM = (
    "Slots are always full; prefill, hand-overs, an engine's own time a step, sampling, embedding "
    "and output head are left out. mist run has a bundle (type: afd) with the prefill before it."
)


@dataclass(frozen=True, kw_only=True)
class Coefficients:
    """Coefficients of a step as the command line has them; None: it does not say."""

    alpha_a: float | None = None
    beta_a: float | None = None
    alpha_f: float | None = None
    beta_f: float | None = None
    alpha_c: float | None = None
    beta_c: float | None = None


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """Model and GPUs as the command line has them; None: it does not say."""

    model: str | None = None
    gpu: str | None = None
    ffn_gpu: str | None = None
    ffn_cards: Annotated[int | None, {"min": 1}] = None
    network_bandwidth: str | None = None
    attention_base: str | None = None
    ffn_base: str | None = None
    communication_base: str | None = None
    mtp_depth: Annotated[int | None, {"min": 0, "max": 64}] = None
    expert_load_imbalance: float | None = None

    @property
    def said(self) -> list[str]:
        """The options that are given."""
        return [option_of(name) for name, value in vars(self).items() if value is not None]

    def derive(self, num_requests: float = math.inf) -> AfdCoefficients:
        """Return the coefficients of a step of all layers, in seconds.

        Attention and experts reach the shares of the GPUs' own kernels, where these are known.
        num_requests: in the batch of an FFN worker, which may reach some of the experts only.
        Raises ScenarioError for missing or wrong options, and if a part does not fit.
        """
        from mist_sim.hardware.afd import FfnCards, step_coefficients

        missing = [f"--{name}" for name in ("model", "gpu") if getattr(self, name) is None]
        if self.model is None or self.gpu is None:
            raise ScenarioError(
                f"{', '.join(self.said)}: {' and '.join(missing)} must be given as well"
            )
        if self.ffn_cards is None or self.network_bandwidth is None:
            raise ScenarioError(
                "--ffn-cards and --network-bandwidth must be given with --model: how many cards "
                "an FFN worker has, and at which rate activations reach each"
            )
        imbalance = self.expert_load_imbalance
        model, gpu, ffn_gpu = self._loaded(self.model, self.gpu)
        try:
            cards = FfnCards(
                gpu=ffn_gpu,
                num_cards=self.ffn_cards,
                network_bandwidth=quantity(
                    self.network_bandwidth, BANDWIDTH, "--network-bandwidth"
                ),
                expert_load_imbalance=1.0 if imbalance is None else imbalance,
            )
            return step_coefficients(
                model,
                gpu,
                cards,
                attention_base=self._seconds("attention_base"),
                ffn_base=self._seconds("ffn_base"),
                communication_base=self._seconds("communication_base") or 0.0,
                mtp_depth=self.mtp_depth or 0,
                num_requests=num_requests,
            )
        except ScenarioError:
            raise
        except ValueError as error:
            raise ScenarioError(str(error)) from error

    def _loaded(self, model: str, gpu: str) -> tuple[ModelSpec, GpuSpec, GpuSpec]:
        """Return the model, the GPU of attention and that of the FFN."""
        from mist_sim.hardware import load_gpu
        from mist_sim.models import load_generating

        ffn_gpu = gpu if self.ffn_gpu is None else self.ffn_gpu
        return load_generating(model), load_gpu(gpu), load_gpu(ffn_gpu)

    def _seconds(self, name: str) -> float | None:
        text: str | None = getattr(self, name)
        return None if text is None else quantity(text, DURATION, option_of(name))

    def warnings(self, own: Coefficients) -> Iterator[ResultWarning]:
        """Yield by how much the GPUs' kernels change derived coefficients.

        Nothing for fitted shares of a GPU. own: those that are not derived.
        """
        from mist_sim.hardware.afd import kernel_shares

        if self.model is None or self.gpu is None:
            return
        for name, found in kernel_shares(*self._loaded(self.model, self.gpu)).items():
            what = "bandwidth" if found.part == "attention" else "peak rate"
            flat = f"{100 * found.share:g} % of the {what} of {found.gpu.name}"
            if getattr(own, name) is not None:
                continue
            if found.matters:
                text = (
                    f"{name} is {found.low:.2f} times what {flat} would make it, since the GPU's "
                    "kernels reach another share, or compute for longer than they read."
                )
                yield ResultWarning(kinds.BUNDLE_SHARES, text)
            elif not found.is_known and found.gpu.confidence == "spec-only":
                text = (
                    f"{name} takes {flat}, whose entry names no architecture. The kernels of the "
                    f"known architectures would multiply it by {found.low:.2f} to "
                    f"{found.high:.2f}. Set architecture in its entry."
                )
                yield ResultWarning(kinds.BUNDLE_SHARES, text)

    def of_batches(self, best: Prediction, times: AfdCoefficients) -> Iterator[ResultWarning]:
        """Yield a warning where the first bundle's batch reaches some of the experts only.

        times: of a step, with the time to read all of them.
        """
        from mist_sim.hardware.afd import LEAST_CHANGE
        from mist_sim.models import load_generating

        if self.model is None or self.ffn_base is not None:
            return
        requests = best.slots * best.ratio
        base = self.derive(requests).beta_f
        if base < (1 - LEAST_CHANGE) * times.beta_f:
            layers = load_generating(self.model).num_layers
            yield ResultWarning(
                kinds.BUNDLE_SHARES,
                f"beta_f is the time to read all experts of a card. The first bundle's batch of "
                f"{requests:.3g} requests reaches {100 * base / times.beta_f:.0f} % of those of "
                f"the busiest card: --ffn-base {1e6 * base / layers:.3g}us says so.",
            )

    def room(self, max_tokens: int | None, memory: str | None) -> tuple[float, str] | None:
        """Return the KV entries that an attention worker has room for, tokens, and why.

        max_tokens, memory: what the command line says of it, as a number or a size. None where it
        says nothing, and no model with its GPU.
        Raises ScenarioError for a size without a model.
        """
        from mist_sim.hardware import GPU_MEMORY_UTILIZATION
        from mist_sim.models import load_generating

        if memory is not None:
            if self.model is None:
                raise ScenarioError(
                    "--kv-memory needs --model, to know the size of a token's KV entries; "
                    "--max-kv-tokens needs none"
                )
            size = quantity(memory, SIZE, "--kv-memory")
            tokens = math.floor(size / load_generating(self.model).kv_bytes_per_token)
            return tokens, f"--kv-memory {memory}"
        if max_tokens is not None:
            return max_tokens, "--max-kv-tokens"
        if self.model is None or self.gpu is None:
            return None
        model, gpu, _ = self._loaded(self.model, self.gpu)
        weights = model.attention_weight_bytes_per_rank(1)
        left = GPU_MEMORY_UTILIZATION * gpu.memory - weights
        title = (
            f"{GPU_MEMORY_UTILIZATION:g} of the {gpu.memory / 1e9:.1f} GB of {gpu.name}, less "
            f"{weights / 1e9:.1f} GB of weights; --kv-memory says otherwise"
        )
        return max(left, 0.0) / model.kv_bytes_per_token, title


def afd(
    trace: str,
    *,
    slots: str,
    form: str | None = None,
    columns: Sequence[str] = (),
    first_token: str = "prefill",
    coefficients: str | None = None,
    own: Coefficients,
    cycle: str | None = None,
    hardware: Hardware,
    batches: str = "2",
    max_tpot: str | None = None,
    max_kv_tokens: Annotated[int | None, {"min": 1}] = None,
    kv_memory: str | None = None,
    as_json: bool = False,
) -> None:
    """Choose the ratio of attention to FFN workers (attention-FFN disaggregation).

    Estimates from a trace how many tokens a slot holds, and prints the best ratios and what
    bundles of workers would do.

    trace TRACE: A file with the lengths of requests.
    slots N[,N...]: Slots of an attention worker in one batch (B), or several to choose from.
    first_token: The side that emits an answer's first token: prefill or decode.
    coefficients NAME|FILE: Published coefficients, or a CSV file of measured times to fit them to.
    alpha_a: Attention, time for each token that a worker's slots hold.
    beta_a: Attention, fixed time.
    alpha_f: FFN, time for each request in the batch of an FFN worker.
    beta_f: FFN, fixed time.
    alpha_c: Communication both ways, time for each of these requests.
    beta_c: Communication both ways, fixed time.
    cycle TIME: The unit of the coefficients, such as '1 us'; without one, results are in cycles.
    model NAME: Derive coefficients, in seconds: of this model ...
    gpu NAME: ... on these GPUs,
    ffn_gpu NAME: or on others for the FFN;
    ffn_cards: cards of an FFN worker;
    network_bandwidth RATE: at which activations reach each of them;
    attention_base TIME: fixed time of a layer's attention, reading the weights without it;
    ffn_base TIME: of a layer's FFN, the same;
    communication_base TIME: of a layer's transfers, none without it;
    mtp_depth: further tokens of a request in a step;
    expert_load_imbalance: tokens of the busiest card over the mean.
    batches N[,N...]: Batches in flight, or several to choose from.
    max_tpot TIME: Longest mean time between two tokens.
    max_kv_tokens: Tokens that an attention worker has memory for.
    kv_memory SIZE: The same as a size, with --model.
    as_json --json: Print the results as JSON.
    """
    from mist_sim.search import check_tail, estimate_slot_load, provision, tail_of
    from mist_sim.search.bundles import Bundles
    from mist_sim.traces import TRACE_READERS
    from mist_sim.traces.base import LeavesOut

    times, unit = _read_coefficients(coefficients, hardware, own, cycle)
    room = hardware.room(max_kv_tokens, kv_memory)
    is_limit = max_kv_tokens is not None or kv_memory is not None
    max_time = _longest_tpot(max_tpot, unit)
    sizes = list(whole_numbers(slots, "--slots", 1, BUNDLE["slots"]))
    flights = list(whole_numbers(batches, "--batches", 2, BUNDLE["batches"]))
    TRACE_READERS.find_entry_points()
    source = reader(trace, form, None, columns)
    if first_token not in ("prefill", "decode"):
        raise ScenarioError(f"--first-token must be prefill or decode, got {brief(first_token)}")
    with by_settings():
        prefill, decode = slot_lengths(source.rows(), first_token)
    estimate, tail = estimate_slot_load(prefill, decode), tail_of(decode[decode > 0])
    check_tail(tail)
    told = [ResultWarning(kinds.CLOSED_FORM, _CLOSED_FORM), *hardware.warnings(own)]
    if room is not None:
        told += _check_room(*room, estimate.load, sizes, flights)
        is_limit = is_limit or len(sizes) * len(flights) > 1
    # each attention GPU sends its batch over one link, so that fewer than FFN cards take as long
    cards = hardware.ffn_cards or 1
    senders = cards if hardware.model is not None and own.alpha_c is None else 1
    limits = given(max_tpot=max_time, max_kv_tokens=room[0] if room and is_limit else None)
    # an attention worker is one GPU
    spec, choices = _chosen(times, estimate.load, sizes, flights, float(cards), senders, limits)
    provisioned = provision(spec)
    best = choices[0].prediction if choices else provisioned.in_flight
    if own.beta_f is None:
        told += hardware.of_batches(best, times)
    if isinstance(source, LeavesOut) and (text := source.left_out.sentence(source.path)):
        told.append(ResultWarning(kinds.LEFT_OUT, text))
    found = Bundles(spec, estimate, tail, provisioned, choices, told, unit)
    if as_json:
        from mist_sim.output import json_text

        typer.echo(json_text(found.summary), nl=False)
    else:
        found.show()


def slot_lengths(rows: Iterable[TraceRow], first_token: str = "prefill") -> tuple[Tokens, Tokens]:
    """Return (prompt tokens, decode steps) of every request, shape (n,) each.

    first_token: prefill or decode: the client that emits an answer's first token; the other tokens
    are one decode step each.
    """
    import numpy as np

    lengths = [(row.num_prompt_tokens, row.num_output_tokens) for row in rows]
    prefill, output = np.array(lengths, dtype=np.int64).reshape(-1, 2).T
    return prefill, output - (first_token == "prefill")


def _read_coefficients(
    source: str | None, hardware: Hardware, own: Coefficients, cycle: str | None
) -> tuple[AfdCoefficients, Unit]:
    """Return coefficients and their unit: of a name, a file of measured times, or hardware.

    Options override single coefficients. cycle: its length. Raises ScenarioError for missing, wrong
    or unreadable coefficients.
    """
    from mist_sim.hardware.afd import PRESETS, chosen_coefficients, named_coefficients
    from mist_sim.inputs import is_there

    if hardware.said:
        for name in given(coefficients=source, cycle=cycle):
            raise ScenarioError(
                f"--{name} must not be given with {hardware.said[0]}, which derives "
                "coefficients in seconds"
            )
        return chosen_coefficients(hardware.derive(), vars(own), option_of), "s"
    if source is None:
        base = None
    elif source in PRESETS or not is_there(Path(source)):
        base = named_coefficients(source)
    else:
        from mist_sim.calibration.afd_latency import fit_afd_coefficients

        base = fit_afd_coefficients(Path(source)).coefficients
    found = chosen_coefficients(base, vars(own), option_of)
    if cycle is None:
        return found, "cycles"
    seconds = quantity(cycle, DURATION, "--cycle")
    if seconds <= 0:
        raise ScenarioError(f"--cycle must be > 0 s, got {brief(cycle)}")
    return found.times(seconds), "s"


def _longest_tpot(text: str | None, unit: Unit) -> float | None:
    """Return a limit on TPOT in the unit of the coefficients. Raises ScenarioError for others."""
    if text is None:
        return None
    if unit == "s":
        return quantity(text, DURATION, "--max-tpot")
    try:
        cycles = float(text)
    except ValueError:
        cycles = math.nan
    if not 0 < cycles <= NUMBER[1]:
        raise ScenarioError(
            f"--max-tpot must be a number of cycles above 0, got {brief(text)}; for a time, say "
            "with --cycle how long one is"
        )
    return cycles


def _chosen(
    coefficients: AfdCoefficients,
    load: SlotLoad,
    slots: list[int],
    batches: list[int],
    ffn_weight: float,
    senders: int,
    limits: dict[str, Any],
) -> tuple[BundleSpec, list[BundleChoice]]:
    """Return the input of provisioning, and the best bundles if there is a choice.

    ffn_weight: number of attention workers that an FFN worker counts as. senders: as in
    `BundleSpec`. limits: those of `best_bundles`.
    Raises ScenarioError if no bundle keeps the limits.
    """
    from mist_sim.search import BundleSpec, best_bundles

    if not limits and len(slots) == len(batches) == 1:
        return BundleSpec(coefficients, load, slots[0], batches[0], ffn_weight, senders), []
    choices = best_bundles(
        coefficients,
        load,
        slots=slots,
        batches=batches,
        ffn_weight=ffn_weight,
        senders=senders,
        **limits,
    )
    best = choices[0]
    spec = BundleSpec(coefficients, load, best.prediction.slots, best.batches, ffn_weight, senders)
    return spec, choices


def _check_room(
    tokens: float, title: str, load: SlotLoad, slots: list[int], batches: list[int]
) -> Iterator[ResultWarning]:
    """Yield which slots in how many batches an attention worker's memory does not hold.

    tokens: for KV entries of which it has room. title: whose it is, in words.
    Raises ScenarioError where none fit.
    """
    from mist_sim.search.afd import kv_tokens_needed, most_slots

    pairs = [(each, number) for each in slots for number in batches]
    out = [
        f"{each} slots in {number} batches ({need:,.0f} tokens)"
        for each, number in pairs
        if (need := kv_tokens_needed(load, each * number)) > tokens
    ]
    if not out:
        return
    fewest = min(batches)
    text = (
        f"{', '.join(out)}: an attention worker holds KV entries of {tokens:,.0f} tokens "
        f"({title}), which are enough for {most_slots(load, tokens) // fewest} slots in {fewest} "
        "batches"
    )
    if len(out) == len(pairs):
        raise ScenarioError(f"no bundle fits: {text}; lower --slots")
    yield ResultWarning(kinds.BUNDLE_MEMORY, f"Left out, since they do not fit: {text}.")
