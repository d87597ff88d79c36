"""The front end of a deployment: HTTP servers between users and the engines' queues."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import NamedTuple

from mist_sim.checks import Checked, NotNegative, Positive
from mist_sim.core.visit import Visit
from mist_sim.units import Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontEnd(Checked):
    """Times between users and engines: HTTP, tokenizing, streaming.

    Users' latencies include these times, the engine's own times do not. If step times come from
    kernels or layers, times that are None are taken from vLLM 0.15 on H100 servers, and listed as
    assumed. Otherwise, and if every client sets its own `overhead.request`, they are 0.

    request: server process time from a request's arrival to the engine's queue, seconds.
    parse: server process time before that, seconds: HTTP, JSON and the chat template. Requests
        that arrive meanwhile are parsed before a parsed one goes on, so that the first of a burst
        waits for all. By default a part of `request` in vLLM 0.10 and 0.11, and 11 ms more in
        0.11.0, which parses the template of each chat anew; 0 if `request` is set.
    prompt_token: server process time per prompt token, for tokenizing, seconds.
    stream_token: server process time per output token streamed, seconds. Requests wait for the
        tokens that came before them, and the first token of an answer for those of its step.
    response: seconds from the step that computes a token until its user has it.
    output_token: seconds per output token between the last step and the end of the answer.
    hop: seconds between a prefill client and a decode client: through a proxy, to the HTTP server
        of the decode client. None: `response` plus another `request`. No hop is added if the place
        was reserved ahead (`hand_over: {transfer: push}`).
    api_server_count: processes of each client that takes prompts (vLLM's --api-server-count).
        Without it, one for each of its data-parallel replicas, as in vLLM.

    Raises ValueError for times that are negative or not finite, and for fewer than one process.
    """

    request: NotNegative[Seconds] | None = None
    parse: NotNegative[Seconds] | None = None
    prompt_token: NotNegative[Seconds] | None = None
    stream_token: NotNegative[Seconds] | None = None
    response: NotNegative[Seconds] | None = None
    output_token: NotNegative[Seconds] | None = None
    hop: NotNegative[Seconds] | None = None
    api_server_count: Positive[int] | None = None

    def or_else(self, default: FrontEnd) -> FrontEnd:
        """Return a copy with None taken from `default`, but for the hop, which is derived."""
        said = {f.name: value for f in fields(self) if (value := getattr(self, f.name)) is not None}
        return replace(default, **said)

    @property
    def times(self) -> tuple[float, ...]:
        """All times that are set."""
        values = (getattr(self, name) for name in TIMES)
        return tuple(value for value in values if value is not None)

    @property
    def is_complete(self) -> bool:
        """Whether every time is set; parse and hop may be None, since others imply them."""
        others = (name for name in TIMES if name not in ("hop", "parse"))
        return all(getattr(self, name) is not None for name in others)

    def parses_first(self, seconds: float) -> FrontEnd:
        """Return a copy in which so much comes before the rest, at least a part of `request`."""
        whole = self.request or 0.0
        return replace(self, parse=seconds, request=max(0.0, whole - min(seconds, PARSE)))


FRONT_END = "front_end"
"""Among what a client assumes: that users reach it through a front end as measured."""

PARSE = 1.5e-3
"""Seconds of `MEASURED.request` before a request is tokenized, where that was measured.

Source: bursts of 1,000 prompts of 128 tokens on vLLM 0.11.0 with gpt-oss, whose prompts need no
template: their first token comes after 1.4 to 1.8 s, twice the median of TTFT minus its p99
(GPUStack, two GPUs).
"""

TEMPLATE = 11e-3
"""Seconds more of a chat in vLLM 0.11.0, whose template it parses anew for each.

Source: the same bursts with Qwen3-14B and 32B: 11.8 and 13.2 s. `resolve_chat_template_kwargs` in
vllm/entrypoints/chat_utils.py, kept from 0.11.1 on.
"""

TIMES = ("request", "parse", "prompt_token", "stream_token", "response", "output_token", "hop")
"""The options of `FrontEnd` that are times."""

MEASURED = FrontEnd(
    request=4.25e-3,
    parse=0.0,
    prompt_token=0.0,
    stream_token=44.5e-6,
    response=1.85e-3,
    output_token=1.7e-6,
)
"""Times of vLLM's HTTP server.

response and output_token: engine traces of vLLM 0.15.1 on H100, 2026 (inference-sim/training,
output/fit/coefficients.json). request: fitted on medians of TTFT of six of the twelve runs in
the same repository (`tools/validation/shared_prefixes.py`). stream_token: with it, a process
is full at 76.5 requests a second with 198 tokens each, which is what one served in vLLM pull
request 17546 (2 x A100, Llama-3.2-1B, --data-parallel-size 2, before the change).
prompt_token: prompts of 570 to 790 tokens show none.
"""

NONE = FrontEnd(
    request=0.0,
    parse=0.0,
    prompt_token=0.0,
    stream_token=0.0,
    response=0.0,
    output_token=0.0,
    hop=0.0,
)
"""No front end: users have the engines' own times."""


class Servers(NamedTuple):
    """What a run's records have to know of its front end.

    options: complete times. numbers: the processes of each client that takes prompts, by client_id.
    """

    options: FrontEnd
    numbers: Mapping[int, int]


Streamed = Callable[[], int]
"""Returns the output tokens that a client has streamed in steps that have ended by now."""


class ApiServers:
    """The server processes of one run; computes when a request enters an engine's queue.

    options: complete times (`FrontEnd.is_complete`). streams: of each client that takes prompts,
        what it streams, and how many processes it has. num_engines: of all these; 0: as many as
        processes.
    parses: whether parsing takes time. response, output_token: as in `FrontEnd`. turn: seconds
        from one token of a step to the next, where an engine's step gives several.

    Requests go to the processes in turn. A process does one thing at a time, in order of arrival:
    a request, its parsing before, or a token that an engine of its client has emitted. Between two
    of its requests the tokens come evenly. A client that takes no prompts streams through
    servers of its own, which no prompt passes.
    """

    def __init__(
        self,
        options: FrontEnd,
        streams: Sequence[tuple[Streamed | None, int]] = ((None, 1),),
        num_engines: int = 0,
    ) -> None:
        self._request = options.request or 0.0
        self._parse = options.parse or 0.0
        self.parses = self._parse > 0
        self._prompt_token = options.prompt_token or 0.0
        self.response = options.response or 0.0
        self.output_token = options.output_token or 0.0
        self._hop = options.hop
        self._place = self._parse_place = 0  # of the process that takes the next request
        stream_token = options.stream_token or 0.0
        self._processes = [
            _Process(streamed if stream_token else None, stream_token / count)
            for streamed, count in streams
            for _ in range(count)
        ]
        self.turn = stream_token * (num_engines or len(self._processes)) / len(self._processes)

    def parsed_at(self, now: float) -> float:
        """Return when a request that arrives now is parsed, seconds.

        Call it once for each request, at the time at which it arrives, and `enters_at` then.
        """
        if not self._parse:
            return now
        place, processes = self._parse_place, self._processes
        self._parse_place = place + 1 if place + 1 < len(processes) else 0
        return self._done_at(processes[place], now, self._parse)

    def enters_at(self, now: float, num_prompt_tokens: int) -> float:
        """Return when a request that is parsed now enters an engine's queue, seconds.

        Call it once for each request, at the time of `parsed_at`.
        """
        place, processes = self._place, self._processes
        self._place = place + 1 if place + 1 < len(processes) else 0
        seconds = self._request + self._prompt_token * num_prompt_tokens
        return self._done_at(processes[place], now, seconds)

    def _done_at(self, process: _Process, now: float, seconds: float) -> float:
        """Return when a process has spent so many seconds on what comes to it now."""
        begin = process.free_at
        if process.streamed is not None:
            num_streamed = process.streamed()
            begin += (num_streamed - process.num_counted) * process.stream_token
            process.num_counted = num_streamed
        if begin < now:  # noqa: PLR1730 - max() is a call a request
            begin = now
        process.free_at = end = begin + seconds
        return end

    def hop(self, num_prompt_tokens: int) -> float:
        """Return the seconds from the end of a prompt until the engine of its answer has it."""
        if self._hop is not None:
            return self._hop
        return self.response + self._parse + self._request + self._prompt_token * num_prompt_tokens

    def leaves_after(self, visits: Sequence[Visit]) -> float:
        """Return the seconds from the end of a request's last visit until its user has all of it.

        visits: that have served it so far, in order. 0 if the last one gave no token.
        """
        if not visits or not visits[-1].num_output_tokens:
            return 0.0
        num_output_tokens = sum([visit.num_output_tokens for visit in visits])
        leaving, last = self.response + self.output_token * num_output_tokens, visits[-1]
        first_token_at = last.first_token_at + (self.response + self.turn * last.num_beside)
        if first_token_at > last.finished_at + leaving:
            return first_token_at - last.finished_at
        return leaving


class _Process:
    """A server process.

    streamed: as in `ApiServers`; None: nothing. stream_token: seconds of it for each token.
    num_counted: tokens that it was given. free_at: when it has done all that it was given, seconds.
    """

    __slots__ = ("free_at", "num_counted", "stream_token", "streamed")

    def __init__(self, streamed: Streamed | None, stream_token: float) -> None:
        self.streamed, self.stream_token = streamed, stream_token
        self.num_counted = 0 if streamed is None else streamed()
        self.free_at = 0.0
