"""Figures of states and sparse attention by architecture, with scores on held-out rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from tools.mixers.mixer_fit import MixerFit, Score, fit_mixer, left_out, score_of
from tools.mixers.mixer_rows import Figures, MixerRows
from tools.mixers.mixer_sources import Tables

_ATTENTION = ("floor", "mfu", "mbu")
_STATE = {True: ("floor", "serial", "mfu", "mbu"), False: ("floor", "mbu")}
_GLM, _FLASH = "zai-org/GLM-5.2", "sgl-project/DeepSeek-V4-Flash-FP8"


@dataclass(frozen=True, slots=True)
class Calibration:
    """Fitted kernels of one phase, and how far rows are from them.

    name: "Gated DeltaNet". fit: on its own rows. kernels: of `fit` that it determines.
    others: scores of rows that no figure was fitted to.
    """

    name: str
    prefill: bool
    kernels: Sequence[str]
    fit: MixerFit
    others: Mapping[str, Score] = field(default_factory=dict)

    @property
    def entries(self) -> dict[str, Mapping[str, float]]:
        """Figures by their kind in `hardware/architectures`."""
        phase = "prefill" if self.prefill else "decode"
        end = "" if self.kernels[0] in ("gdn", "kda") else "_attention"
        return {f"{name}_{phase}{end}": self.fit.figures[name] for name in self.kernels}


def calibrations(tables: Tables) -> Iterator[Calibration]:
    """Yield the kernels of an architecture, prompts before decodes.

    Raises ScenarioError if a table is missing.
    """
    for prefill in (True, False):
        yield _state("Gated DeltaNet", "gdn", tables.gdn(prefill))
        # KDA's versions measured a model each, so the older one is also the model left out
        yield _state("KDA", "kda", tables.kda(prefill, newest=prefill), tables.kda(prefill))
        sparse = _sparse(tables, prefill)
        index = _index(tables, prefill, sparse.fit.figures)
        compressed = _compressed(tables, prefill, index.fit.figures)
        yield from (sparse, index, compressed, _blocks(tables, prefill))


def _state(name: str, kernel: str, rows: MixerRows, every: MixerRows | None = None) -> Calibration:
    free = {kernel: _STATE[rows.prefill]}
    every = rows if every is None else every
    score = left_out(every, free, every.model)
    others = {"one model left out": score} if score else {}
    return Calibration(name, rows.prefill, [kernel], fit_mixer(rows, free), others)


def _sparse(tables: Tables, prefill: bool) -> Calibration:
    """Fit attention to chosen tokens, on modules that take the choice of an earlier layer."""
    free = {"sparse": _ATTENTION}
    rows = tables.dsa(prefill, has_indexer=False)
    fit = fit_mixer(rows, free)
    eight_bits = tables.dsa(prefill, has_indexer=False, kv_cache="fp8")
    others = {"a cache of 8 bits": score_of(eight_bits.errors(fit.figures))}
    return Calibration("DSA", prefill, ["sparse"], fit, others | _by_heads(rows, free))


def _index(tables: Tables, prefill: bool, sparse: Figures) -> Calibration:
    """Fit the indexer on the modules of GLM-5.2 that have one, behind the attention's figures."""
    free = {"index": _ATTENTION}
    rows = tables.dsa(prefill, has_indexer=True)
    chosen = rows.model == _GLM
    fit = fit_mixer(rows.only(chosen), free, sparse)
    others = {"DeepSeek-V3.2": score_of(rows.only(~chosen).errors(fit.figures))}
    return Calibration("DSA with indexer", prefill, ["index"], fit, others)


def _compressed(tables: Tables, prefill: bool, index: Figures) -> Calibration:
    """Fit HCA on whole modules of DeepSeek-V4-Flash; CSA takes its figures, and the indexer's."""
    rows = tables.compressed("hca", prefill)
    chosen = rows.model == _FLASH
    fit = fit_mixer(rows.only(chosen), {"compressed": _ATTENTION})
    figures = {**index, **fit.figures}
    sparse = tables.compressed("csa", prefill)
    is_flash = sparse.model == _FLASH
    scores = {
        "DeepSeek-V4-Pro": score_of(rows.only(~chosen).errors(figures)),
        "CSA of DeepSeek-V4-Flash": score_of(sparse.only(is_flash).errors(figures)),
        "CSA of DeepSeek-V4-Pro": score_of(sparse.only(~is_flash).errors(figures)),
    }
    return Calibration("HCA", prefill, ["compressed"], fit, scores)


def _blocks(tables: Tables, prefill: bool) -> Calibration:
    """Fit MiniMax-M3's indexer and attention together; one floor holds both."""
    free = {"block_index": ("mfu", "mbu"), "blocks": _ATTENTION}
    rows = tables.blocks(prefill)
    fit = fit_mixer(rows, free)
    return Calibration("MiniMax-M3", prefill, list(free), fit, _by_heads(rows, free))


def _by_heads(rows: MixerRows, free: Mapping[str, Sequence[str]]) -> dict[str, Score]:
    score = left_out(rows, free, np.asarray(rows.heads))
    return {"one number of heads left out": score} if score else {}
