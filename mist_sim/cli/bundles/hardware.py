"""Coefficients of `mist afd` that are derived from a model and GPUs."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from mist_sim.cli.lists import option_of
from mist_sim.core import result_warnings as kinds
from mist_sim.core.result_warnings import ResultWarning
from mist_sim.errors import ScenarioError
from mist_sim.hardware import GPU_MEMORY_UTILIZATION, load_gpu
from mist_sim.hardware.afd import (
    LEAST_CHANGE,
    AfdCoefficients,
    FfnCards,
    KernelShares,
    kernel_shares,
    step_coefficients,
)
from mist_sim.models import load_generating
from mist_sim.search.afd import Prediction
from mist_sim.units import BANDWIDTH, DURATION, SIZE, Kind


@dataclass(frozen=True, kw_only=True)
class HardwareOptions:
    """Model and GPUs as the command line has them; None: it does not say."""

    model: str | None
    gpu: str | None
    ffn_gpu: str | None
    ffn_cards: int | None
    network_bandwidth: str | None
    attention_base: str | None
    ffn_base: str | None
    communication_base: str | None
    mtp_depth: int | None
    expert_load_imbalance: float | None

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
        model, gpu = load_generating(self.model), load_gpu(self.gpu)
        try:
            cards = FfnCards(
                gpu=gpu if self.ffn_gpu is None else load_gpu(self.ffn_gpu),
                num_cards=self.ffn_cards,
                network_bandwidth=quantity(
                    self.network_bandwidth, BANDWIDTH, "--network-bandwidth"
                ),
                expert_load_imbalance=(
                    1.0 if self.expert_load_imbalance is None else self.expert_load_imbalance
                ),
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

    def warnings(self, given: Collection[str]) -> Iterator[ResultWarning]:
        """Yield what the GPUs' kernels make of derived coefficients.

        given: names of coefficients that are not derived.
        """
        for name, found in self._shares(given):
            for text in _share_lines(name, found):
                yield ResultWarning(kinds.BUNDLE_SHARES, text)

    def of_batches(self, best: Prediction, times: AfdCoefficients) -> Iterator[ResultWarning]:
        """Yield a warning where the first bundle's batch reaches some of the experts only.

        times: of a step, with the time to read all of them.
        """
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

    def _shares(self, given: Collection[str]) -> Iterator[tuple[str, KernelShares]]:
        """Yield what kernels would make of each coefficient that is derived from a share."""
        if self.model is None or self.gpu is None:
            return
        model, gpu = load_generating(self.model), load_gpu(self.gpu)
        ffn_gpu = gpu if self.ffn_gpu is None else load_gpu(self.ffn_gpu)
        shares = kernel_shares(model, gpu, ffn_gpu)
        yield from ((name, found) for name, found in shares.items() if name not in given)

    def _seconds(self, name: str) -> float | None:
        text: str | None = getattr(self, name)
        if text is None:
            return None
        return quantity(text, DURATION, option_of(name))

    def room(self) -> tuple[float, str] | None:
        """Return the KV entries that fit beside an attention worker's weights, tokens, and why.

        None without a model and its GPU.
        """
        if self.model is None or self.gpu is None:
            return None
        model, gpu = load_generating(self.model), load_gpu(self.gpu)
        weights = model.attention_weight_bytes_per_rank(1)
        left = GPU_MEMORY_UTILIZATION * gpu.memory - weights
        title = (
            f"{GPU_MEMORY_UTILIZATION:g} of the {gpu.memory / 1e9:.1f} GB of {gpu.name}, less "
            f"{weights / 1e9:.1f} GB of weights; --kv-memory says otherwise"
        )
        return max(left, 0.0) / model.kv_bytes_per_token, title

    def kv_tokens(self, memory: str) -> int:
        """Return the KV entries that fit in a memory, in tokens. Raises ScenarioError for none."""
        if self.model is None:
            raise ScenarioError(
                "--kv-memory needs --model, to know the size of a token's KV entries; "
                "--max-kv-tokens needs none"
            )
        num_bytes = quantity(memory, SIZE, "--kv-memory")
        return math.floor(num_bytes / load_generating(self.model).kv_bytes_per_token)


def _share_lines(name: str, found: KernelShares) -> Iterator[str]:
    """Yield by how much kernels change a coefficient; nothing for fitted shares of a GPU."""
    what = "bandwidth" if found.part == "attention" else "peak rate"
    flat = f"{100 * found.share:g} % of the {what} of {found.gpu.name}"
    if found.matters:
        yield (
            f"{name} is {found.low:.2f} times what {flat} would make it, since the GPU's kernels "
            "reach another share, or compute for longer than they read."
        )
    elif not found.is_known and found.gpu.confidence == "spec-only":
        yield (
            f"{name} takes {flat}, whose entry names no architecture. The kernels of the known "
            f"architectures would multiply it by {found.low:.2f} to {found.high:.2f}. Set "
            "architecture in its entry."
        )


def quantity(text: str, kind: Kind, option: str) -> float:
    """Return a number with a unit in base units. Raises ScenarioError that names the option."""
    try:
        return kind.parse(text)
    except ScenarioError as error:
        raise ScenarioError(f"{option}: {error}") from error
