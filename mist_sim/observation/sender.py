"""Requests sent to a server that speaks OpenAI's API, and the times at which its tokens come.

A server may be broken, or hostile: each of its answers is bounded in time and bytes, and its counts
are held against what was asked. An answer that is out of bounds is an error of its request, and
costs no other's.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.cookiejar import DefaultCookiePolicy
from itertools import count
from time import perf_counter
from typing import TYPE_CHECKING, Any

from mist_sim.bounds import ANSWER_BYTES, ANSWER_BYTES_A_TOKEN, ANSWER_LINE_BYTES
from mist_sim.core.request import Request
from mist_sim.errors import ScenarioError, brief
from mist_sim.observation.prompts import Prompts

if TYPE_CHECKING:
    from httpx import AsyncClient, Response

_DATA, _DONE = b"data:", b"[DONE]"
_SHOWN = 200  # characters of a server's words in a message
_REFUSAL_BYTES = 1_000  # of an answer that is an error
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
        the prompts. timeout: seconds from sending a request to the end of its
        answer, after which it is abandoned.
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
        plain = {"Accept-Encoding": "identity"}  # what is packed has no bound
        async with AsyncClient(timeout=None, limits=limits, headers=plain) as client:  # noqa: S113
            client.cookies.jar.set_policy(DefaultCookiePolicy(allowed_domains=()))
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
            async with asyncio.timeout(self.timeout), client.stream("GET", f"{self.url}/v1/models"):
                return
        except TimeoutError:
            problem = f"gave no answer within {self.timeout:g} s"
        except (HTTPError, InvalidURL, OSError, ValueError) as error:
            problem = f"cannot be reached: {_told(error)}"
        raise ScenarioError(f"{self.url}: {problem}; start the server, or correct the URL")

    async def _send(self, client: AsyncClient, each: Observed, start: float) -> None:
        """Send a request, and note when its pieces come."""
        from httpx import HTTPError, InvalidURL

        url = f"{self.url}/v1/completions"
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
            async with (
                asyncio.timeout(self.timeout),
                client.stream("POST", url, json=body) as response,
            ):
                await _read(response, each, start)
        except TimeoutError:
            come = f"{len(each.pieces)} of {number} tokens had come"
            each.error = f"the answer took over {self.timeout:g} s; {come}"
        except UnfitAnswerError as error:
            each.error = str(error)
        except (HTTPError, InvalidURL, OSError, ValueError) as error:
            each.error = _told(error)
        if not each.error and not each.pieces:
            each.error = "the answer was empty"


class UnfitAnswerError(ValueError):
    """An answer cannot be one to what was asked; the message says why."""


def _told(error: Exception) -> str:
    return brief(str(error) or type(error).__name__, _SHOWN)


async def _read(response: Response, each: Observed, start: float) -> None:
    """Note the pieces of an answer, and how many tokens the server says that they are.

    Raises UnfitAnswerError for more tokens or bytes than were asked for.
    """
    if not response.is_success:
        each.error = await _refusal(response)
        return
    asked, counted = each.request.num_output_tokens, 0
    async for event in _events(response, ANSWER_BYTES + asked * ANSWER_BYTES_A_TOKEN):
        if event.get("error"):
            each.error = brief(event["error"], _SHOWN)
            return
        counted = _counted(event.get("usage"), asked) or counted
        if event.get("choices"):  # also of a token without text, as vllm bench serve counts
            each.pieces.append(perf_counter() - start)
        if len(each.pieces) > asked + 1:  # some servers say the reason of the end in another
            raise UnfitAnswerError(f"the answer has over {asked} pieces, one for each token asked")
    each.num_output_tokens = counted or min(len(each.pieces), asked)


async def _refusal(response: Response) -> str:
    """Return what an answer that is none says: its status, and its first words."""
    status = f"status {response.status_code}"
    if response.has_redirect_location:
        place = brief(response.headers["Location"], _SHOWN)
        return f"{status}, a redirect to {place}, which is not followed; give that server's URL"
    told = b""
    async for piece in response.aiter_raw(_REFUSAL_BYTES):
        told += piece
        if len(told) >= _REFUSAL_BYTES:
            break
    return f"{status}: {brief(told[:_REFUSAL_BYTES].decode(errors='replace'), _SHOWN)}"


def _counted(usage: object, asked: int) -> int:
    """Return the tokens that a server counts so far; 0 if it does not say."""
    number = usage.get("completion_tokens") if isinstance(usage, Mapping) else None
    if number is None:
        return 0
    if type(number) is not int or not 0 <= number <= asked:
        raise UnfitAnswerError(
            f"usage.completion_tokens must be from 0 to {asked}, the tokens asked, got "
            f"{brief(number)}"
        )
    return number


async def _events(response: Response, most_bytes: int) -> AsyncIterator[dict[str, Any]]:
    """Yield the objects of a stream of server-sent events."""
    async for line in _lines(response, most_bytes):
        text = line.removeprefix(_DATA).strip()
        if not line.startswith(_DATA) or text == _DONE:
            continue
        try:
            event = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise UnfitAnswerError(f"an event is not valid JSON: {_told(error)}") from None
        if isinstance(event, dict):
            yield event


async def _lines(response: Response, most_bytes: int) -> AsyncIterator[bytes]:
    """Yield the lines of an answer. Raises UnfitAnswerError beyond the bounds of both."""
    num_bytes, rest = 0, b""
    async for piece in response.aiter_raw():
        num_bytes += len(piece)
        if num_bytes > most_bytes:
            raise UnfitAnswerError(f"the answer has over {most_bytes} bytes")
        lines = (rest + piece).splitlines(keepends=True)
        rest = b"" if not lines or lines[-1].endswith((b"\n", b"\r")) else lines.pop()
        if max(map(len, (rest, *lines))) > ANSWER_LINE_BYTES:
            raise UnfitAnswerError(f"a line of the answer has over {ANSWER_LINE_BYTES} bytes")
        for line in lines:
            yield line
    if rest:
        yield rest


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
