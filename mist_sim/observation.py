"""A live server under a workload of ours: its requests are sent, timed, and kept for `validate`.

Requests sent to a server that speaks OpenAI's API, and the times at which its tokens come.

A server may be broken, or hostile: each of its answers is bounded in time and bytes, and its counts
are held against what was asked. An answer that is out of bounds is an error of its request, and
costs no other's.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from http.cookiejar import DefaultCookiePolicy
from itertools import count
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from mist_sim.bounds import ANSWER_BYTES, ANSWER_BYTES_A_TOKEN, ANSWER_LINE_BYTES, ANSWER_READ_BYTES
from mist_sim.core.content_ids import leading
from mist_sim.core.request import Request
from mist_sim.errors import ScenarioError, brief, in_words
from mist_sim.interruptions import put_off
from mist_sim.metrics.latency import SHORT_NAMES
from mist_sim.output import write_text
from mist_sim.scenario import Scenario
from mist_sim.scenario.format import yaml_text
from mist_sim.traces import TraceRow
from mist_sim.traces.writers import WRITERS

if TYPE_CHECKING:
    from httpx import AsyncClient, Response


_FIRST = 100  # ids below are special tokens in many vocabularies
_OWN, _SHARED = 0, 1  # kinds of streams, so that no request's own tokens are shared ones


@dataclass(frozen=True)
class Prompts:
    """Makes the prompt of each request.

    vocabulary: ids are drawn from 100 up to this. seed: of the draws.
    """

    vocabulary: int = 30_000
    seed: int = 0

    def tokens(self, request: Request) -> list[int]:
        """Return as many ids as the prompt has tokens; equal content gives equal ids."""
        number, parts = request.num_prompt_tokens, []
        for span, length in request.content:
            parts.append(self._drawn(_SHARED, span, length))
        rest = number - sum(map(len, parts))
        if rest > 0:
            parts.append(self._drawn(_OWN, request.request_id, rest))
        found: list[int] = np.concatenate(parts)[:number].tolist()
        return found

    def _drawn(
        self, kind: int, number: int, length: int
    ) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """Return the first token ids of a stream; shorter prompts begin longer ones."""
        entropy = [number, 0] if number >= 0 else [~number, 1]  # of no two numbers alike
        rng = np.random.Generator(np.random.PCG64([self.seed, kind, *entropy]))
        return rng.integers(_FIRST, self.vocabulary, length)


_DATA, _DONE = b"data:", b"[DONE]"
_LINE_END = re.compile(rb"\r\n?|\n")
_SHOWN = 200  # characters of a server's words in a message
_REFUSAL_BYTES, _REFUSAL_TIME = 1_000, 1.0  # bytes and s of an answer that is an error
_ENDS = (None, "", "stop", "length")  # reasons of an end that vLLM and SGLang give to answers
_LOOK = 0.005  # s between two looks at how late this machine is, and whether it is to stop
_STOPPED = "its answer had not come when the run was stopped"
_MISSING = "mist observe needs httpx, which is not installed: pip install 'mist-sim[observe]'"


@dataclass
class Observed:
    """A request that was sent: when, and when the pieces of its answer came.

    sent_at, first_at, last_at: seconds since the first request was due, the latter two of the
    pieces. num_output_tokens: as the server counts them, or the pieces where it does not; 0 until
    the answer is whole. error: empty where it was answered.
    """

    request: Request
    sent_at: float = 0.0
    num_pieces: int = 0
    first_at: float = 0.0
    last_at: float = 0.0
    num_output_tokens: int = 0
    error: str = _STOPPED

    def take_piece(self, now: float) -> None:
        """Note a piece of the answer."""
        self.num_pieces += 1
        self.last_at = now
        if self.num_pieces == 1:
            self.first_at = now

    @property
    def ttft(self) -> float:
        """Seconds from sending to the first piece."""
        return self.first_at - self.sent_at

    @property
    def e2el(self) -> float:
        """Seconds from sending to the last piece."""
        return self.last_at - self.sent_at

    @property
    def tpot(self) -> float | None:
        """Mean gap between tokens, seconds; None for an answer of one, or in one piece."""
        gaps = self.num_output_tokens - 1
        seen = self.num_pieces > 1 and gaps > 0
        return (self.last_at - self.first_at) / gaps if seen else None


@dataclass
class Observation:
    """What was seen of a server; an interruption leaves what had come until then.

    requests: in the order in which they were due. lateness: seconds by which this machine was late
    at most to note what came: it looked at its connections no more rarely.
    """

    requests: list[Observed] = field(default_factory=list)
    lateness: float = 0.0

    @property
    def answered(self) -> list[Observed]:
        """The requests whose answers came, whole."""
        return [each for each in self.requests if not each.error]

    @property
    def latencies(self) -> dict[str, list[float]]:
        """Of the answered ones, seconds by metric."""
        found = {key: [getattr(each, key) for each in self.answered] for key in SHORT_NAMES}
        return found | {"tpot": [gap for gap in found["tpot"] if gap is not None]}


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
        seen: Observation,
        *,
        users: int | None = None,
        think_time: float = 0.0,
        progress: Callable[[int, float], None] | None = None,
    ) -> None:
        """Send requests, and note their answers in `seen`.

        users: of a closed loop, each of which sends its next request `think_time` seconds after its
            last answer; None: requests are sent when they arrive. progress: is called with the
            answers so far, and seconds.
        Raises ScenarioError without httpx, and where the server cannot be reached or refuses the
        first request.
        """
        require_httpx()
        with put_off() as stops, suppress(asyncio.CancelledError):  # it would hit any line of httpx
            asyncio.run(self._observe(requests, seen, stops, users, think_time, progress))

    async def _observe(
        self,
        requests: Iterator[Request],
        seen: Observation,
        stops: Sequence[int],
        users: int | None,
        think_time: float,
        progress: Callable[[int, float], None] | None,
    ) -> None:
        async with _Lanes() as lanes:
            watch = asyncio.create_task(_watch(seen, stops, asyncio.current_task()))
            try:
                await self._reach(lanes)
                start, answers = perf_counter(), count(1)

                async def send(each: Observed) -> None:
                    await self._send(lanes, each, start)
                    done = next(answers)
                    if progress is not None:
                        progress(done, perf_counter() - start)

                loop = _open if users is None else _closed(users, think_time)
                await loop(requests, seen.requests, send, start)
            finally:
                watch.cancel()

    async def _reach(self, lanes: _Lanes) -> None:
        """Raise ScenarioError unless the server answers."""
        from httpx import HTTPError, InvalidURL

        try:
            async with (
                lanes.free() as lane,
                asyncio.timeout(self.timeout),
                lane.ask("GET", f"{self.url}/v1/models", ANSWER_BYTES),
            ):
                return
        except TimeoutError:
            problem = f"gave no answer within {self.timeout:g} s"
        except (HTTPError, InvalidURL, OSError, ValueError) as error:
            problem = f"cannot be reached: {_told(error)}"
        raise ScenarioError(f"{self.url}: {problem}; start the server, or correct the URL")

    async def _send(self, lanes: _Lanes, each: Observed, start: float) -> None:
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
        most_bytes = ANSWER_BYTES + number * ANSWER_BYTES_A_TOKEN
        problem = ""
        async with lanes.free() as lane:
            each.sent_at = perf_counter() - start
            try:
                asked = lane.ask("POST", url, most_bytes, json=body)
                async with asyncio.timeout(self.timeout), asked as response:
                    await _read(response, each, start)
            except UnfitAnswerError as error:
                each.num_output_tokens, problem = 0, str(error)
            except TimeoutError:
                come = f"{each.num_pieces} of {number} tokens had come"
                problem = f"the answer took over {self.timeout:g} s; {come}"
            except (HTTPError, InvalidURL, OSError, ValueError) as error:
                problem = _told(error)
        each.error = "" if each.num_output_tokens else problem  # whole, if not well ended


async def _watch(seen: Observation, stops: Sequence[int], work: asyncio.Task[None] | None) -> None:
    """Note how rarely this machine looks at its connections; end the work once a signal came."""
    looked = perf_counter()
    while not stops:
        try:
            await asyncio.sleep(_LOOK)
        finally:
            before, looked = looked, perf_counter()
            seen.lateness = max(seen.lateness, looked - before)
    if work is not None:
        work.cancel()


class UnfitAnswerError(ValueError):
    """An answer cannot be one to what was asked; the message says why."""


@dataclass
class _Lane:
    """A connection to a server, for one request at a time.

    most, left: bytes that it may send to a request, headers and framing included, and of these now.
    """

    client: AsyncClient
    most: int = 0
    left: int = 0

    def ask(
        self, method: str, url: str, most_bytes: int, **words: Any
    ) -> AbstractAsyncContextManager[Response]:
        """Send a request; more bytes of an answer raise UnfitAnswerError."""
        self.most = self.left = most_bytes
        extensions = {"trace": self._bound}  # what httpcore calls as it connects
        return self.client.stream(method, url, extensions=extensions, **words)

    async def _bound(self, event: str, about: dict[str, Any]) -> None:
        """Count what is read of each new connection; httpx takes interim answers without end."""
        if event.endswith((".connect_tcp.complete", ".start_tls.complete")):
            stream = about["return_value"]
            connection = stream.get_extra_info("socket")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, ANSWER_LINE_BYTES)
            read = stream.read

            async def counted(max_bytes: int, timeout: float | None = None) -> bytes:
                found: bytes = await read(min(max_bytes, ANSWER_READ_BYTES), timeout)
                self.left -= len(found)
                if self.left < 0:
                    raise UnfitAnswerError(f"the answer has over {self.most} bytes")
                return found

            stream.read = counted


class _Lanes(AsyncExitStack):
    """Connections to a server: as many as there are requests in flight.

    One pool of httpx's for all would look at every connection for every other that becomes free: 8
    s for 300 requests at once.
    """

    def __init__(self) -> None:
        from httpx import create_ssl_context

        super().__init__()
        self._ssl = create_ssl_context()
        self._free: list[_Lane] = []

    @asynccontextmanager
    async def free(self) -> AsyncIterator[_Lane]:
        """Lend a connection to one request."""
        lane = self._free.pop() if self._free else await self._opened()
        try:
            yield lane
        finally:
            self._free.append(lane)

    async def _opened(self) -> _Lane:
        from httpx import AsyncClient

        plain = {"Accept-Encoding": "identity"}  # what is packed has no bound
        client = AsyncClient(verify=self._ssl, timeout=None, headers=plain)  # noqa: S113
        client.cookies.jar.set_policy(DefaultCookiePolicy(allowed_domains=()))
        return _Lane(await self.enter_async_context(client))


def _told(error: Exception) -> str:
    return brief(str(error) or type(error).__name__, _SHOWN)


async def _read(response: Response, each: Observed, start: float) -> None:
    """Note the pieces of an answer, and how many tokens the server says that they are.

    Raises UnfitAnswerError for an error, and for an answer that is none to what was asked.
    """
    if not response.is_success:
        raise UnfitAnswerError(await _refusal(response))
    asked, counted = each.request.num_output_tokens, 0
    async for text in _events(response):
        if text == _DONE:
            each.num_output_tokens = _number(each, counted)
            continue
        event = _parsed(text)
        if each.num_output_tokens and event:
            raise UnfitAnswerError("the answer goes on after [DONE]")
        if event.get("error"):
            raise UnfitAnswerError(brief(event["error"], _SHOWN))
        counted = _counted(event.get("usage"), each.request) or counted
        if _is_piece(event.get("choices")):
            each.take_piece(perf_counter() - start)
        if each.num_pieces > asked + 1:  # some servers say the reason of the end in another
            raise UnfitAnswerError(f"the answer has over {asked} pieces, one for each token asked")
    come = each.num_pieces
    if 0 < come < asked and not counted and not each.num_output_tokens:
        raise UnfitAnswerError(f"the answer broke off after {come} of {asked} tokens")
    each.num_output_tokens = _number(each, counted)


def _number(each: Observed, counted: int) -> int:
    """Return the tokens of a whole answer. counted: by the server; 0 if it does not say."""
    come = each.num_pieces
    if not come:
        raise UnfitAnswerError("the answer was empty")
    if counted and come > counted + 1:
        raise UnfitAnswerError(
            f"usage.completion_tokens must be at least the pieces of the answer less one, got "
            f"{counted} for {come} pieces"
        )
    return counted or min(come, each.request.num_output_tokens)


def _is_piece(choices: object) -> bool:
    """Tell whether an event has a token, also one without text, as vllm bench serve counts."""
    if choices is None or choices == []:
        return False
    first = choices[0] if isinstance(choices, list) else None
    if not isinstance(first, Mapping) or "text" not in first:
        raise UnfitAnswerError(f"choices must be a list of texts, got {brief(choices)}")
    if (reason := first.get("finish_reason")) not in _ENDS:
        raise UnfitAnswerError(f"the server ended the answer: finish_reason is {brief(reason)}")
    return True


async def _refusal(response: Response) -> str:
    """Return what an answer that is none says: its status, and its first words."""
    status = f"status {response.status_code}"
    if response.has_redirect_location:
        place = brief(response.headers["Location"], _SHOWN)
        return f"{status}, a redirect to {place}, which is not followed; give that server's URL"
    from httpx import HTTPError

    told = b""
    with suppress(TimeoutError, HTTPError):  # the status is known without its words
        async with asyncio.timeout(_REFUSAL_TIME):
            async for piece in response.aiter_raw():
                told += piece[:_REFUSAL_BYTES]
                if len(told) >= _REFUSAL_BYTES:
                    break
    return f"{status}: {brief(told[:_REFUSAL_BYTES].decode(errors='replace'), _SHOWN)}"


def _counted(usage: object, request: Request) -> int:
    """Return the tokens of an answer that a server counts so far; 0 if it does not say."""
    said = usage if isinstance(usage, Mapping) else {}
    asked, sent = request.num_output_tokens, request.num_prompt_tokens
    number, prompt = said.get("completion_tokens") or 0, said.get("prompt_tokens") or sent
    if type(number) is not int or not 0 <= number <= asked:
        raise UnfitAnswerError(
            f"usage.completion_tokens must be from 0 to {asked}, the tokens asked, got "
            f"{brief(number)}"
        )
    if type(prompt) is not int or prompt < sent:
        raise UnfitAnswerError(
            f"usage.prompt_tokens must be at least {sent}, the tokens sent, got {brief(prompt)}: "
            "the server cut the prompt"
        )
    return number


def _parsed(text: bytes) -> dict[str, Any]:
    """Return the object of an event; empty for one that is none."""
    try:
        event = json.loads(text)
    except (ValueError, RecursionError) as error:
        problem = _told(error)
    else:
        return event if isinstance(event, dict) else {}
    raise UnfitAnswerError(f"an event is not valid JSON: {problem}")  # the other one holds the text


async def _events(response: Response) -> AsyncIterator[bytes]:
    """Yield the data of a stream of server-sent events.

    Raises UnfitAnswerError for a line that is too long.
    """
    line = bytearray()
    async for piece in response.aiter_raw():
        *ends, begin = _LINE_END.split(piece)
        for end in ends:
            _grow(line, end)
            if line.startswith(_DATA):
                yield _data(line)
            line.clear()
        _grow(line, begin)
    if line.startswith(_DATA):
        yield _data(line)


def _grow(line: bytearray, more: bytes) -> None:
    line += more
    if len(line) > ANSWER_LINE_BYTES:
        raise UnfitAnswerError(f"a line of the answer has over {ANSWER_LINE_BYTES} bytes")


def _data(line: bytearray) -> bytes:
    return bytes(line[len(_DATA) :]).strip()


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


REQUESTS, SCENARIO, RUN = "requests.csv", "scenario.yaml", "run.yaml"
TRACE = {"vidur": "sent.csv", "mooncake": "sent.jsonl"}


def write_run(
    folder: Path, found: Sequence[Observed], scenario: Scenario, *, name: str, engine: str
) -> None:
    """Write the files that `mist validate` reads.

    Common prefixes of prompts are kept if the workload is a trace of blocks (`mooncake`). Raises
    ScenarioError if no request was answered.
    """
    answered = [each for each in found if not each.error]
    if not answered:
        first = next((each.error for each in found), "none was sent")
        raise ScenarioError(f"no request was answered, the first because: {first}")
    answered.sort(key=lambda each: each.sent_at)
    data: dict[str, Any] = yaml_text.parse(scenario.resolved(), SCENARIO)
    form = (
        "mooncake" if (data["workload"].get("trace") or {}).get("type") == "mooncake" else "vidur"
    )
    write_text(folder / TRACE[form], WRITERS[form](_rows(answered)))
    write_text(folder / REQUESTS, _lines(answered))
    write_text(folder / SCENARIO, _replay(data, form))
    run = {
        "name": name,
        "engine": engine,
        "provenance": f"observed by mist observe{_left_out(len(found) - len(answered))}",
        "scenario": SCENARIO,
        "requests": REQUESTS,
        "starts_at": "arrival",
    }
    write_text(folder / RUN, yaml_text.dump(run))


def _left_out(number: int) -> str:
    return f"; {in_words(number, 'request')} without a whole answer left out" if number else ""


def _rows(answered: Sequence[Observed]) -> Iterator[TraceRow]:
    """Yield the requests with their sending times and the lengths of the answers."""
    start = answered[0].sent_at
    for each in answered:
        tokens = each.request.num_prompt_tokens
        content = leading(each.request.content, tokens)
        yield TraceRow(tokens, each.num_output_tokens, each.sent_at - start, content=content)


def _lines(answered: Sequence[Observed]) -> Iterator[str]:
    yield "request_id,ttft,tpot,e2el\n"
    for number, each in enumerate(answered):
        tpot = "" if each.tpot is None else repr(each.tpot)
        yield f"{number},{each.ttft!r},{tpot},{each.e2el!r}\n"


def _replay(data: dict[str, Any], form: str) -> str:
    """Return the scenario with the sent requests as its workload. form: of the trace file."""
    workload = data["workload"]
    size = (workload.get("trace") or {}).get("hash_block_size")
    for key in ("lengths", "max_concurrency", "max_tokens"):
        workload.pop(key, None)
    workload["trace"] = {"type": form, "path": TRACE[form]}
    if form == "mooncake":
        workload["trace"]["hash_block_size"] = size
    workload["arrivals"] = {"type": "trace"}
    return yaml_text.dump(data)
