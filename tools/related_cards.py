"""Shares of the peaks of a card without measurements, from a measured one of its architecture.

A rule with three facts, for cards whose clock falls under load until the watts fit:

- *Power.* What full tensor cores draw above idle goes with their number, the clock and the square
  of a voltage that follows it: with peak rate x clock^2. Where that is more than the limit leaves,
  the clock falls by the cube root of the ratio (as in `hardware/power_cap.py`).
- *Issue.* At full clock products reach 0.91 of the peak, as those of an RTX 3090 do, whose tensor
  cores run at half rate and stay below its limit.
- *ECC.* With check bits in GDDR6, memory gives 15 of every 16 bytes, of its size and of its
  bandwidth. CUDA's total says whether they are on: 44.4 GiB of 48 GB, or 47.5.

Only one card checks it: an RTX 3090 by an RTX A6000, the same chip, is right in arithmetic, and its
bandwidth 9 % too high.
"""

from __future__ import annotations

from dataclasses import dataclass

MOST = 0.91
_ECC = 15 / 16
_IDLE = 0.18  # of the power limit, `hardware/power.py`


@dataclass(frozen=True, slots=True)
class Card:
    """What a card is.

    peak: dense FLOP/s in 16 bits, at the boost clock. clock: that, MHz. power: its limit, watts.
    ecc: whether check bits take a part of its memory.
    """

    peak: float
    clock: float
    power: float
    ecc: bool


def related_shares(card: Card, measured: Card, mfu: float, mbu: float) -> tuple[float, float]:
    """Return MFU and MBU of a card. mfu (up to 0.91), mbu: of the measured one.

    Raises ValueError for a measured card that its limit does not slow down: its arithmetic does not
    tell what it would draw.
    """
    if not mfu < MOST:
        raise ValueError(f"mfu of the measured card must be < {MOST}, got {mfu}")
    wanted = measured.power * (1 - _IDLE) / (mfu / MOST) ** 3
    wanted *= card.peak / measured.peak * (card.clock / measured.clock) ** 2
    slowed = min(1.0, (card.power * (1 - _IDLE) / wanted) ** (1 / 3))
    bandwidth = mbu / (_ECC if measured.ecc else 1.0) * (_ECC if card.ecc else 1.0)
    return MOST * slowed, min(bandwidth, 1.0)
