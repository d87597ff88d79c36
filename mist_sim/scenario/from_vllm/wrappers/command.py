"""One command of vLLM, with the wrappers around it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from mist_sim.scenario.from_vllm.account import Account

SERVE, BENCH = "vllm serve", "vllm bench serve"
COMMANDS = (SERVE, BENCH)
"""vLLM's own for servers."""

LOADS = {
    ("vllm", "bench", "serve"): BENCH,
    ("vllm", "bench", "throughput"): "vllm bench throughput",
    ("vllm", "bench", "latency"): "vllm bench latency",
    ("sglang.bench_serving",): "sglang.bench_serving",
    ("guidellm", "benchmark", "run"): "guidellm benchmark",
    ("guidellm", "benchmark"): "guidellm benchmark",
    ("aiperf", "profile"): "aiperf profile",
    ("genai-perf", "profile"): "genai-perf profile",
    ("genai-perf",): "genai-perf profile",
}
"""Load generators by the words that start them, longer ones first."""


@dataclass(frozen=True, eq=False)
class Devices:
    """GPUs that a container reserves; all commands in it share one of these.

    flag: as its file says them. number: of one copy of it; None where the file leaves it open.
    """

    flag: str
    number: int | None


@dataclass(frozen=True)
class Command:
    """A command.

    name: `SERVE`, or of `LOADS`. words: its arguments. variables: of its environment, by name.
    around: the account of its wrappers. image: of its container, with its tag. devices: the GPUs of
    its container; None if it says none. count: how many run. gpu: which they are, of the catalog;
    empty if unknown. in_group: whether further containers have further GPUs for it.
    """

    name: str
    words: tuple[str, ...]
    variables: Mapping[str, str]
    around: Account
    image: str = ""
    devices: Devices | None = None
    count: int = 1
    gpu: str = ""
    in_group: bool = False

    @property
    def num_gpus(self) -> int | None:
        """GPUs that it may use; None if unknown."""
        return None if self.in_group or self.devices is None else self.devices.number


@dataclass
class Surroundings:
    """Settings that the wrappers around a command give it before it is read; see `Command`."""

    variables: dict[str, str] = field(default_factory=dict)
    account: Account = field(default_factory=Account)
    image: str = ""
    devices: Devices | None = None
    count: int = 1
    gpu: str = ""

    def command(self, name: str, words: list[str]) -> Command:
        """Return a command with these settings."""
        return Command(
            name,
            tuple(words),
            dict(self.variables),
            self.account,
            self.image,
            self.devices,
            self.count,
            self.gpu,
        )

    def copy(self) -> Surroundings:
        """Return the same, to be added to."""
        account = Account()
        account.items = list(self.account.items)
        return replace(self, variables=dict(self.variables), account=account)
