"""Requests sent to a server that speaks OpenAI's API, and the times at which its tokens come."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from time import perf_counter
from typing import TYPE_CHECKING, Any

from mist_sim.core.request import Request
from mist_sim.errors import ScenarioError, brief
from mist_sim.observation.prompts import Prompts

if TYPE_CHECKING:
    from httpx import AsyncClient, Response

_DATA, _DONE = "data:", "[DONE]"
_MISSING = "mist observe needs httpx, which is not installed: pip install 'mist-sim[observe]'"


@dataclass
class Observed:
    """A request that was sent: when, and when each piece of its answer came.

    sent_at, pieces: seconds since the first request was due. num_output_tokens: as the server
    counts them, or the pieces where it does not. error: empty where it was answered.
    """

    request: Request
    sent_at: float = 0.0
    pieces: list[float] = field(default_factory=list)
    num_output_tokens: int = 0
    error: str = ""

    @property
    def ttft(self) -> float:
        """Seconds from sending to the first piece."""
        return self.pieces[0] - self.sent_at

    @property
    def e2el(self) -> float:
        """Seconds from sending to the last piece."""
        return self.pieces[-1] - self.sent_at

    @property
    def tpot(self) -> float | None:
        """Mean gap between tokens, seconds; None for an answer of one."""
        gaps = self.num_output_tokens - 1
        return (self.pieces[-1] - self.pieces[0]) / gaps if gaps > 0 else None


@dataclass(frozen=True, kw_only=True)
class Server:
    """A server to observe.

    url: of its API, such as http://localhost:8000. model: model name in requests. prompts: makes
        the prompts. timeout: seconds after which a request is abandoned.
    """

    url: str
    model: str
    prompts: Prompts = field(default_factory=Prompts)
    timeout: float = 600.0

    def observe(
        self,
        requests: Iterator[Request],
        *,
        users: int | None = None,
        think_time: float = 0.0,
        progress: Callable[[int, float], None] | None = None,
    ) -> list[Observed]:
        """Send requests, and return them in the order in which they were due.

        users: of a closed loop, each of which sends its next request `think_time` seconds after its
            last answer; None: requests are sent when they arrive. progress: is called with the
            answers so far, and seconds.
        Raises ScenarioError without httpx, and where the server cannot be reached or refuses the
        first request.
        """
        require_httpx()
        return asyncio.run(self._observe(requests, users, think_time, progress))

    async def _observe(
        self,
        requests: Iterator[Request],
        users: int | None,
        think_time: float,
        progress: Callable[[int, float], None] | None,
    ) -> list[Observed]:
        from httpx import AsyncClient, Limits

        limits = Limits(max_connections=None, max_keepalive_connections=None)
        async with AsyncClient(timeout=self.timeout, limits=limits) as client:
            await self._reach(client)
            start, found = perf_counter(), list[Observed]()

            answers = count(1)

            async def send(each: Observed) -> None:
                await self._send(client, each, start)
                done = next(answers)
                if progress is not None:
                    progress(done, perf_counter() - start)

            loop = _open if users is None else _closed(users, think_time)
            await loop(requests, found, send, start)
        return found

    async def _reach(self, client: AsyncClient) -> None:
        """Raise ScenarioError unless the server answers."""
        from httpx import HTTPError, InvalidURL

        try:
            await client.get(f"{self.url}/v1/models")
        except (HTTPError, InvalidURL, ValueError) as error:
            raise ScenarioError(
                f"{self.url}: cannot be reached: {brief(str(error) or type(error).__name__, 200)}; "
                "start the server, or correct the URL"
            ) from None

    async def _send(self, client: AsyncClient, each: Observed, start: float) -> None:
        """Send a request, and note when its pieces come."""
        from httpx import HTTPError

        number = each.request.num_output_tokens
        body = {
            "model": self.model,
            "prompt": self.prompts.tokens(each.request),
            "max_tokens": number,
            "min_tokens": number,
            "ignore_eos": True,
            "temperature": 0.0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        each.sent_at = perf_counter() - start
        try:
            async with client.stream("POST", f"{self.url}/v1/completions", json=body) as response:
                await _read(response, each, start)
        except HTTPError as error:
            each.error = brief(str(error) or type(error).__name__, 200)
        if not each.error and not each.pieces:
            each.error = "the answer was empty"


async def _read(response: Response, each: Observed, start: float) -> None:
    """Note the pieces of an answer, and how many tokens the server says that they are."""
    if response.is_error:
        told = (await response.aread()).decode(errors="replace")
        each.error = f"status {response.status_code}: {brief(told, 200)}"
        return
    counted = 0
    async for event in _events(response):
        if event.get("error"):
            each.error = brief(str(event["error"]), 200)
            return
        usage = event.get("usage")
        if isinstance(usage, dict) and isinstance(usage.get("completion_tokens"), int):
            counted = usage["completion_tokens"]
        if event.get("choices"):  # also of a token without text, as vllm bench serve counts
            each.pieces.append(perf_counter() - start)
    each.num_output_tokens = counted or len(each.pieces)


async def _events(response: Response) -> AsyncIterator[dict[str, Any]]:
    """Yield the objects of a stream of server-sent events."""
    async for line in response.aiter_lines():
        text = line.removeprefix(_DATA).strip()
        if not line.startswith(_DATA) or text == _DONE:
            continue
        try:
            event = json.loads(text)
        except ValueError:
            continue
        if isinstance(event, dict):
            yield event


Loop = Callable[
    [Iterator[Request], list[Observed], Callable[[Observed], Awaitable[None]], float],
    Awaitable[None],
]


async def _open(
    requests: Iterator[Request],
    found: list[Observed],
    send: Callable[[Observed], Awaitable[None]],
    start: float,
) -> None:
    """Send each request at its arrival, independently of earlier ones."""
    async with asyncio.TaskGroup() as tasks:
        for request in requests:
            wait = (request.arrival_time or 0.0) - (perf_counter() - start)
            if wait > 0:
                await asyncio.sleep(wait)
            found.append(Observed(request))
            tasks.create_task(_awaited(send(found[-1])))


async def _awaited(work: Awaitable[None]) -> None:
    await work


def _closed(users: int, think_time: float) -> Loop:
    """Return a loop of users, each waiting for an answer before the next request."""

    async def loop(
        requests: Iterator[Request],
        found: list[Observed],
        send: Callable[[Observed], Awaitable[None]],
        start: float,
    ) -> None:
        async def user() -> None:
            for request in requests:  # all users take from the same requests
                found.append(mine := Observed(request))
                await send(mine)
                await asyncio.sleep(think_time)

        async with asyncio.TaskGroup() as tasks:
            for _ in range(users):
                tasks.create_task(user())

    return loop


def require_httpx() -> None:
    """Raise ScenarioError where httpx is not installed."""
    from importlib.util import find_spec

    if find_spec("httpx") is None:
        raise ScenarioError(_MISSING)
