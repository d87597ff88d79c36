"""TaiChi's three sliders: the number of P-heavy clients, and the chunk size of each kind.

Their end positions are the two designs between which the hybrid lies: with equal chunk sizes all
clients are equal (aggregation); with no chunks on the D-heavy clients, prompts and answers are
served apart (disaggregation).

Source: TaiChi (arXiv:2508.01989) §3.1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from mist_sim.errors import ScenarioError

Design = Literal["aggregation", "disaggregation", "hybrid"]
DESIGNS: tuple[Design, ...] = ("aggregation", "disaggregation", "hybrid")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sliders:
    """A position of the sliders.

    num_p, num_d: P-heavy and D-heavy clients (>= 1). s_p, s_d: chunk size of each kind, tokens per
        step; s_d 0: D-heavy clients compute no prompts, and P-heavy clients do not cut prompts.
        watermark: of a hybrid, the share of a D-heavy client's blocks above which answers leave (>
        0, <= 1); None: the policy's own.
    Raises ValueError for sliders that make no design.
    """

    num_p: int
    num_d: int
    s_p: int
    s_d: int
    watermark: float | None = None

    def __post_init__(self) -> None:
        if self.num_p < 1 or self.num_d < 1:
            raise ValueError(f"num_p and num_d must be >= 1, got {self.num_p} and {self.num_d}")
        if not 0 <= self.s_d <= self.s_p or self.s_p < 1:
            raise ValueError(f"s_p must be >= 1 and s_d in [0, s_p], got {self.s_p} and {self.s_d}")
        if self.watermark is not None and not (self.design == "hybrid" and 0 < self.watermark <= 1):
            raise ValueError(
                f"watermark must be > 0 and <= 1, and of a hybrid, got {self.watermark} of a "
                f"{self.design}"
            )

    @property
    def design(self) -> Design:
        """The kind of position: aggregation, disaggregation or hybrid."""
        if self.s_d == self.s_p:
            return "aggregation"
        return "hybrid" if self.s_d else "disaggregation"

    @property
    def name(self) -> str:
        """Clients and chunks, for people."""
        if self.design == "aggregation":
            return f"{self.num_p + self.num_d} x {self.s_p}"
        if self.design == "disaggregation":
            return f"{self.num_p} prefill, {self.num_d} decode"
        watermark = "" if self.watermark is None else f", watermark {self.watermark:g}"
        return f"{self.num_p} x {self.s_p}, {self.num_d} x {self.s_d}{watermark}"


def all_sliders(
    num_clients: int, chunks: Sequence[int], watermarks: Sequence[float | None] = (None,)
) -> Iterator[Sliders]:
    """Yield every position for the given chunk sizes, the middle positions of each kind first.

    watermarks: watermarks to try for hybrids; None: the policy's own.
    Raises ScenarioError for fewer than two clients, for no chunk size or one below 1, and for an
    empty list of watermarks.
    """
    if num_clients < 2:
        raise ScenarioError(f"there must be >= 2 clients to divide, got {num_clients}")
    if not chunks or min(chunks) < 1:
        raise ScenarioError(f"chunks must be >= 1 token, one at least, got {list(chunks)}")
    if not watermarks:
        raise ScenarioError("watermarks must be one at least, or left out")
    sizes, splits = sorted(set(chunks)), range(1, num_clients)
    largest = sizes[-1]
    for size in _from_the_middle(sizes):
        yield Sliders(num_p=1, num_d=num_clients - 1, s_p=size, s_d=size)
    for num_p in _from_the_middle(splits):
        yield Sliders(num_p=num_p, num_d=num_clients - num_p, s_p=largest, s_d=0)
    for num_p in _from_the_middle(splits):
        for s_p in _from_the_middle(sizes):
            for s_d in _from_the_middle([size for size in sizes if size < s_p]):
                for mark in dict.fromkeys(watermarks):
                    num_d = num_clients - num_p
                    yield Sliders(num_p=num_p, num_d=num_d, s_p=s_p, s_d=s_d, watermark=mark)


def _from_the_middle(values: Sequence[int]) -> list[int]:
    middle = (len(values) - 1) / 2
    positions = sorted(range(len(values)), key=lambda k: (abs(k - middle), k))
    return [values[k] for k in positions]
