"""The work of mixers: attention and indexers over entries, and the recurrences of states.

Entries are cached values of one token, or of several if compressed or pooled.

Source of the forms of chunked prompts: Gated DeltaNet (arXiv 2412.06464, section 3.3) and Mamba-2
(arXiv 2405.21060, section 6), as the kernels of flash-linear-attention and mamba_ssm launch them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from mist_sim.models.layers import linear_mixers, mixers_of
from mist_sim.models.mixers import CompressedMixer, HeadsMixer, LatentMixer, LinearMixer
from mist_sim.models.operators.attention import attention, expand_context
from mist_sim.models.operators.base import Number, Operator
from mist_sim.models.operators.mixers import view
from mist_sim.models.spec import ModelSpec

_HEADS_PADDED = 64
"""Query heads that sparse kernels compute of a prompt at least (`FlashMLASparseImpl` in vLLM's
`v1/attention/backends/mla/flashmla_sparse.py` pads to so many)."""

Work = Callable[[Number, Number, Number, bool], Operator]
"""Work of (queries, entries read, (query, entry) pairs, whether they are of a prompt)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attends:
    """Attention, or an indexer, of some layers on one rank.

    name: for tables. layers: that run it.
    kernel: "attention", "latent", "sparse", "compressed", "blocks", "index" or "block_index".
    shares_kernel: it runs in the kernel of the one before, which alone has a least time.
    heads: query heads of the rank. work: of one layer.
    reach: tokens that a query sees at most, its own included; None: all.
    is_chunked: the reach is the part of the context behind its last multiple.
    per_entry: tokens of an entry.
    expanded: operators for each cached token that a prompt expands first.
    """

    name: str
    layers: int
    kernel: str
    heads: float
    work: Work
    reach: int | None = None
    is_chunked: bool = False
    per_entry: int = 1
    expanded: tuple[Operator, ...] = ()
    shares_kernel: bool = False


def attends(model: ModelSpec, t: int) -> list[Attends]:
    """Return all attention of a model with layers of different kinds, on one of t ranks."""
    found: list[Attends] = []
    for mixer, layers in mixers_of(model.layers).items():
        if isinstance(mixer, HeadsMixer):
            found += _heads(model, mixer, layers, t)
        elif isinstance(mixer, LatentMixer):
            found += _latent(model, mixer, layers, t)
        elif isinstance(mixer, CompressedMixer):
            found += _compressed(model, mixer, layers, t)
    return found


def _heads(model: ModelSpec, mixer: HeadsMixer, layers: int, t: int) -> Iterator[Attends]:
    heads, sizes = mixer.num_heads / t, mixer.head_dim + mixer.v_head_dim
    key_bytes = mixer.kv_heads(t) * sizes * model.kv_entry_bytes

    def work(queries: Number, keys: Number, pairs: Number, prefill: bool) -> Operator:
        traffic = key_bytes * keys + heads * sizes * queries * model.dtype_bytes
        return Operator("attention", 2 * heads * sizes * pairs, traffic)

    indexer, reach = mixer.indexer, mixer.reach
    if indexer is not None:
        reach = indexer.reach
        sizes_of_index = indexer.num_heads, indexer.head_dim, indexer.key_bytes
        yield _index("block_index", *sizes_of_index, layers, "bf16")
    name = "" if reach is None else f"_{'chunk' if mixer.is_chunked else 'window'}_{reach}"
    yield Attends(
        name=f"attention{name}",
        layers=layers,
        kernel="blocks" if indexer else "attention",
        heads=heads,
        work=work,
        reach=reach,
        is_chunked=mixer.is_chunked,
    )


def _latent(model: ModelSpec, mixer: LatentMixer, layers: int, t: int) -> Iterator[Attends]:
    plain, topk = view(model, mixer), mixer.topk

    def work(queries: Number, keys: Number, pairs: Number, prefill: bool) -> Operator:
        if topk is None or not prefill:
            return attention(plain, queries, keys, pairs, t, prefill)
        found = attention(plain, queries, keys, pairs, t, prefill=False)
        rows = attention(plain, queries, 0, 0, t, prefill=False).bytes
        padded = _padded(mixer.num_heads / t)
        return found._replace(
            flops=found.flops * padded, bytes=found.bytes + (_moved(padded) - 1) * rows
        )

    indexer = mixer.indexer
    if indexer is not None:
        sizes = indexer.num_heads, indexer.head_dim, indexer.key_bytes
        yield _index("index", *sizes, layers, "fp8", indexer.per_entry)
    yield Attends(
        name="attention" if topk is None else f"attention_top_{topk}",
        layers=layers,
        kernel="latent" if topk is None else "sparse",
        heads=mixer.num_heads / t,
        work=work,
        reach=topk,
        expanded=tuple(expand_context(plain, 1, t)) if topk is None else (),
    )


def _compressed(model: ModelSpec, mixer: CompressedMixer, layers: int, t: int) -> Iterator[Attends]:
    heads, size = mixer.num_heads / t, mixer.head_dim

    def work(queries: Number, keys: Number, pairs: Number, prefill: bool) -> Operator:
        padded = _padded(heads) if prefill else 1.0
        rows = 2 * heads * size * queries * model.dtype_bytes
        traffic = mixer.entry_bytes * keys + (_moved(padded) if prefill else 1) * rows
        return Operator("attention", 4 * padded * heads * size * pairs, traffic)

    def more(queries: Number, keys: Number, pairs: Number, prefill: bool) -> Operator:
        return work(0, keys, pairs, prefill)  # queries are read once, with the window

    window = mixer.sliding_window
    yield Attends(
        name=f"attention_window_{window}",
        layers=layers,
        kernel="compressed",
        heads=heads,
        work=work,
        reach=window,
    )
    if not mixer.ratio:
        return
    indexer = mixer.indexer
    if indexer is not None:
        sizes = indexer.num_heads, indexer.head_dim, indexer.key_bytes
        yield _index("index", *sizes, layers, "fp8", mixer.ratio)
    yield Attends(
        name=f"attention_compressed_{mixer.ratio}",
        layers=layers,
        kernel="compressed",
        heads=heads,
        work=more,
        reach=indexer.topk * mixer.ratio if indexer else None,
        per_entry=mixer.ratio,
        shares_kernel=True,
    )


def _padded(heads: float) -> float:
    """Return the work of a sparse kernel over that of the heads that there are."""
    return max(1.0, _HEADS_PADDED / heads)


def _moved(padded: float) -> float:
    """Return the rows of queries and outputs moved by padding, divided by the rows without it.

    Queries are copied to an array with the padded number of heads, and outputs have as many.
    """
    return padded if padded == 1 else padded + (1 + padded) / 2


def _index(
    kernel: str,
    heads: int,
    size: int,
    key_bytes: int,
    layers: int,
    dtype: str,
    per_entry: int = 1,
) -> Attends:
    """Return an indexer: scores of all keys, written and read again to choose from them."""
    score_bytes = 2 * 4

    def work(queries: Number, keys: Number, pairs: Number, prefill: bool) -> Operator:
        traffic = key_bytes * keys + heads * size * queries + score_bytes * pairs
        return Operator("index", 2 * heads * size * pairs, traffic, dtype)

    return Attends(
        name=kernel,
        layers=layers,
        kernel=kernel,
        heads=0.0,
        work=work,
        per_entry=per_entry,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StateWork:
    """The recurrence of some layers on one rank, of one layer.

    kind: "gdn", "kda" or "mamba2". layers: layers that run it.
    of_token: work of a new prompt token. of_prompt: bytes that a prompt reads and writes once.
    of_decode: work of a decode, which reads and writes its state.
    """

    kind: str
    layers: int
    of_token: Operator
    of_prompt: Operator
    of_decode: Operator


def states(model: ModelSpec, t: int) -> list[StateWork]:
    """Return the recurrences of a model with layers of different kinds, on one of t ranks."""
    return [_state(model, mixer, layers, t) for mixer, layers in linear_mixers(model.layers)]


def _state(model: ModelSpec, mixer: LinearMixer, layers: int, t: int) -> StateWork:
    width, chunk = model.dtype_bytes, mixer.chunk_size
    heads, values = mixer.value_heads / t, mixer.values / t
    keys, size = mixer.key_dim, mixer.value_dim
    state = mixer.recurrent_state_bytes(t)
    through = (mixer.conv_width(t) + values) * width
    if mixer.kind == "mamba2":
        groups = mixer.keys_on(t)
        flops = heads * (4 * keys * size + 2 * chunk * size) + groups * 2 * chunk * keys
    else:
        flops = heads * (6 * keys * size + 2 * chunk * (3 * keys + 2 * size + chunk))
    return StateWork(
        kind=mixer.kind,
        layers=layers,
        of_token=Operator("state", flops, through),
        of_prompt=Operator("state", 0.0, 2.0 * state),
        of_decode=Operator("state", 7.0 * heads * keys * size, 2.0 * state + through),
    )
