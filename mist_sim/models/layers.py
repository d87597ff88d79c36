"""LayerSpec: one layer of a model with layers of different kinds, and sums over such layers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache

from mist_sim.checks import NotNegative, Positive, check_fields
from mist_sim.models.mixers import LatentMixer, LinearMixer, Mixer
from mist_sim.models.quantization import Part


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSpec:
    """One layer: its mixer, which connects tokens, and its MLP or experts.

    mixer: attention or a state; None: none (some layers of Nemotron-H and Nemotron NAS).
    mlp_size: inner size of an ordinary MLP; 0: none.
    has_experts: whether it has the model's mixture of experts.
    vector_params: parameters of its norms and of residual connections.
    copies: copies of the hidden state on residual connections (hyper-connections); 1: plain.
    """

    mixer: Mixer | None = None
    mlp_size: NotNegative[int] = 0
    has_experts: bool = False
    vector_params: NotNegative[int] = 0
    copies: Positive[int] = 1

    def __post_init__(self) -> None:
        check_fields(self)
        if self.mlp_size and self.has_experts:
            raise ValueError("an MLP beside experts is a shared expert: see MoeSpec")

    @property
    def num_sums(self) -> int:
        """All-reduces of a token's hidden state: one behind the mixer, one behind the rest."""
        return (self.mixer is not None) + (self.mlp_size > 0 or self.has_experts)


Layers = tuple[LayerSpec, ...]


@cache
def mixers_of(layers: Layers) -> Mapping[Mixer, int]:
    """Return the different mixers of some layers, with the number of layers that have them."""
    return Counter(layer.mixer for layer in layers if layer.mixer is not None)


@cache
def mlp_sizes(layers: Layers) -> Mapping[int, int]:
    """Return the inner sizes of ordinary MLPs, with the number of layers that have them."""
    return Counter(layer.mlp_size for layer in layers if layer.mlp_size)


def num_with_experts(layers: Iterable[LayerSpec]) -> int:
    """Return the number of layers with experts."""
    return sum(layer.has_experts for layer in layers)


def mixer_params(layers: Layers, hidden_size: int, ranks: int) -> tuple[dict[Part, int], int]:
    """Return the parameters of all mixers on a rank: of their matrices by part, and others."""
    matrices: Counter[Part] = Counter()
    plain = 0
    for mixer, number in mixers_of(layers).items():
        held = mixer.held(hidden_size, ranks)
        plain += number * held.plain
        for part, params in held.matrices.items():
            matrices[part] += number * params
    return dict(matrices), plain


def vector_params(layers: Layers) -> int:
    """Return the parameters of norms and residual connections of all layers."""
    return sum(layer.vector_params for layer in layers)


def token_bytes(layers: Layers, ranks: int, entry_bytes: int) -> float:
    """Return the bytes that a token adds to the caches of all layers on a rank.

    Layers with a window count too, although they free the bytes later.
    """
    found = 0.0
    for mixer, number in mixers_of(layers).items():
        found += number * mixer.token_bytes(ranks, entry_bytes)
    return found


def state_bytes(layers: Layers, ranks: int, entry_bytes: int) -> int:
    """Return the bytes of all states of one sequence on a rank."""
    found = 0
    for mixer, number in mixers_of(layers).items():
        found += number * mixer.state_bytes(ranks, entry_bytes)
    return found


def problem_of(layers: Layers, ranks: int) -> str:
    """Return how some mixer or MLP cannot be split over so many ranks; empty: all can."""
    for mixer in mixers_of(layers):
        if problem := mixer.problem(ranks):
            return problem
    for size in mlp_sizes(layers):
        if size % ranks:
            return f"divide the MLP size {size}"
    return ""


def linear_mixers(layers: Layers) -> Iterator[tuple[LinearMixer, int]]:
    """Yield the different mixers that keep a state alone, with the number of their layers."""
    for mixer, number in mixers_of(layers).items():
        if isinstance(mixer, LinearMixer):
            yield mixer, number


def absorbed_params(layers: Layers, ranks: int) -> int:
    """Return the parameters of the 16-bit copies that decodes of latent attention use."""
    found = 0
    for mixer, number in mixers_of(layers).items():
        if isinstance(mixer, LatentMixer):
            found += number * mixer.mla.kv_up_params(mixer.num_heads // ranks)
    return found


def heads_of(layers: Layers) -> list[int]:
    """Return the numbers of heads of the different mixers; the largest limits the number of ranks.

    Empty for a model with equal layers.
    """
    return [mixer.most_ranks for mixer in mixers_of(layers)]


def inner_width(mixer: Mixer, ranks: int) -> float:
    """Return the values between the norm and the output of a mixer, per token on a rank.

    These are the inputs and outputs of a state; attention alone needs less than an MLP.
    """
    if isinstance(mixer, LinearMixer):
        return mixer.input_width(ranks) + mixer.conv_width(ranks) + mixer.values / ranks
    return 0


def keeps_entries(mixer: Mixer | None) -> bool:
    """Whether a mixer is attention: it keeps entries of tokens, of all or of a window."""
    return mixer is not None and not isinstance(mixer, LinearMixer)
