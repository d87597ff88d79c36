"""The designs of MIST's section V-A: what eight GPUs of three kinds can be, and what they cost."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

from mist_sim import load_gpu
from mist_sim.errors import ScenarioError

GPUS = 8
SKUS = ("h100-sxm", "a100-80gb-sxm", "l40s")
SIZES = (1, 2, 4, 8)  # tensor and pipeline parallel
CHUNKS = (512, 1024, 2048, 4096, 8192)
TUNED_SEQS, TUNED_CHUNKS = (128, 256), (512, 1024, 2048, 4096)
"""Of vLLM's benchmarks/auto_tune/auto_tune.sh: NUM_SEQS_LIST and NUM_BATCHED_TOKENS_LIST."""

NIC = 400e9 / 8  # bytes/s of a GPU's network card: 400 Gb/s, as in an HGX server
PRICES = Path(__file__).parent / "aws_prices.csv"
COLUMNS = ("gpu", "machine", "num_gpus", "on_demand", "date")  # of a price file
SHORT = {"h100-sxm": "H100", "a100-80gb-sxm": "A100", "l40s": "L40S"}


class Engine(NamedTuple):
    """GPUs that serve as one: the kind, and how many in tensor and pipeline parallel."""

    sku: str
    tp: int
    pp: int = 1

    @property
    def num_gpus(self) -> int:
        return self.tp * self.pp

    @property
    def name(self) -> str:
        return f"{SHORT[self.sku]} TP{self.tp}" + (f" PP{self.pp}" if self.pp > 1 else "")


class Batching(NamedTuple):
    """How an engine puts steps together. tokens: of a step; None: prompts are not cut."""

    kind: str
    tokens: int | None = None
    seqs: int = 256

    @property
    def name(self) -> str:
        seqs = f", {self.seqs} seqs" if self.seqs != 256 else ""
        return f"{self.kind} {self.tokens}{seqs}" if self.tokens else self.kind


APART = Batching("chunked", 8192)  # of engines for prompts, whose steps keep no answer waiting


@dataclass(frozen=True)
class Design:
    """Eight GPUs. prompts, answers: engines and their number; `answers` None: all do both."""

    prompts: tuple[int, Engine]
    answers: tuple[int, Engine] | None = None
    batching: Batching = APART

    @property
    def name(self) -> str:
        number, engine = self.prompts
        if self.answers is None:
            return f"{number} x {engine.name}, {self.batching.name}"
        return (
            f"{number} x {engine.name} prefill + {self.answers[0]} x {self.answers[1].name} decode"
        )

    @property
    def group(self) -> str:
        """What it is drawn as."""
        skus = {SHORT[engine.sku] for _, engine in self.pools}
        if self.answers is None:
            return skus.pop()
        return f"{skus.pop()} apart" if len(skus) == 1 else "two kinds apart"

    @property
    def pools(self) -> list[tuple[int, Engine]]:
        return [self.prompts] + ([self.answers] if self.answers else [])

    def dollars(self, prices: Prices) -> float:
        """Return dollars an hour of all GPUs."""
        return sum(number * engine.num_gpus * prices.of(engine) for number, engine in self.pools)

    def settings(
        self, max_model_len: int, whole: int, prices: Prices, more: list[Any]
    ) -> dict[str, Any]:
        """Return what the design sets in a scenario.

        whole: tokens of a step where prompts are not cut. more: clients that every design has.
        """
        roles = ("prefill", "decode") if self.answers else (None,)
        names = ("prompts", "answers") if self.answers else ("llm",)
        clients = [
            self._client(name, role, pool, max_model_len, whole) | self._price(pool[1], prices)
            for name, role, pool in zip(names, roles, self.pools, strict=True)
        ]
        found: dict[str, Any] = {"clients": [*clients, *more]}
        if self.answers:
            found["network"] = {"bandwidth": f"{self._link() / 1e9:g} GB/s", "latency": "1 ms"}
        return found

    def _client(
        self, name: str, role: str | None, pool: tuple[int, Engine], longest: int, whole: int
    ) -> dict[str, Any]:
        (count, engine), (kind, tokens, seqs) = pool, self.batching
        scheduler = {"type": kind, "max_num_seqs": seqs, "max_num_batched_tokens": tokens or whole}
        found = {"name": name, "count": count, "gpu": engine.sku, "max_model_len": longest}
        found |= {"tensor_parallel_size": engine.tp, "pipeline_parallel_size": engine.pp}
        return found | {"scheduler": scheduler} | ({"role": role} if role else {})

    @staticmethod
    def _price(engine: Engine, prices: Prices) -> dict[str, str]:
        return {"gpu_price": f"{prices.of(engine)!r} $/h"}

    def _link(self) -> float:
        """Return bytes a second between the pools: the cards of the smaller side."""
        return min(number * engine.num_gpus * card(engine.sku) for number, engine in self.pools)


def card(sku: str) -> float:
    """Return bytes a second between a GPU and others: its network card, or PCIe if that is less."""
    return min(NIC, load_gpu(sku).host_bandwidth)


class Prices:
    """Dollars of a GPU an hour: of the machine that holds an engine at least cost a GPU.

    path: rows of machines with their date. whole: only machines of eight GPUs count.
    Raises ScenarioError where the file is not there, or is no list of prices.
    """

    def __init__(self, path: Path = PRICES, *, whole: bool = False) -> None:
        if not path.is_file():
            raise ScenarioError(
                f"{path} is missing: dollars an hour of AWS's machines (columns gpu, machine, "
                "num_gpus, on_demand, date), from instances.vantage.sh; the project has it in "
                "examples/mist_studies"
            )
        least = GPUS if whole else 1
        self._rows = [row for row in _rows(path) if int(row["num_gpus"]) >= least]
        self.dates = sorted({row["date"] for row in self._rows})

    def of(self, engine: Engine) -> float:
        found = [
            float(row["on_demand"]) / int(row["num_gpus"])
            for row in self._rows
            if row["gpu"] == engine.sku and int(row["num_gpus"]) >= engine.num_gpus
        ]
        if not found:
            raise ScenarioError(f"the price file has no machine for {engine.name}")
        return min(found)


def _rows(path: Path) -> list[dict[str, str]]:
    """Return the machines of a price file."""
    lines = [line for line in path.read_text("utf-8").splitlines() if line[:1] != "#"]
    rows = list(csv.DictReader(lines))
    for row in rows or [{}]:
        lacks = [name for name in COLUMNS if not row.get(name)]
        if lacks:
            raise ScenarioError(
                f"{path}: a row has no {lacks[0]}; columns must be {', '.join(COLUMNS)}, as in "
                "examples/mist_studies/aws_prices.csv"
            )
        try:
            is_valid = int(row["num_gpus"]) >= 1 and 0 < float(row["on_demand"]) < inf
        except ValueError:
            is_valid = False
        if not is_valid:
            raise ScenarioError(
                f"{path}: num_gpus must be a whole number >= 1 and on_demand dollars an hour > 0, "
                f"got {row['num_gpus'][:40]!r} and {row['on_demand'][:40]!r}"
            )
    return rows


def layouts() -> list[tuple[int, int]]:
    """Return tensor and pipeline parallel sizes of engines of which eight GPUs make some."""
    return [(tp, pp) for tp, pp in product(SIZES, SIZES) if tp * pp <= GPUS]


def together() -> Iterator[Design]:
    """Yield engines of one kind that do both; those with pipelines with one chunk alone."""
    kinds = [Batching("chunked", chunk) for chunk in CHUNKS]
    kinds += [Batching("continuous"), Batching("mixed")]
    for sku, (tp, pp), batching in product(SKUS, layouts(), kinds):
        if pp == 1 or batching.tokens == 2048:
            engine = Engine(sku, tp, pp)
            yield Design((GPUS // engine.num_gpus, engine), batching=batching)


def apart() -> Iterator[Design]:
    """Yield pools of one or two kinds, with any tensor parallel sizes that fill the eight GPUs."""
    sizes = [size for size in SIZES if size < GPUS]
    for prompt, answer, a, b in product(SKUS, SKUS, sizes, sizes):
        for number in range(1, GPUS // a + 1):
            left = GPUS - number * a
            if left >= b and left % b == 0:
                pools = (number, Engine(prompt, a)), (left // b, Engine(answer, b))
                yield Design(*pools, APART)


def tuned(sku: str, tp: int) -> list[Design]:
    """Return what vLLM's auto-tune tries on eight GPUs of a kind, at a given TP."""
    engines = GPUS // tp, Engine(sku, tp)
    grid = product(TUNED_SEQS, TUNED_CHUNKS)
    return [Design(engines, batching=Batching("chunked", c, s)) for s, c in grid]
