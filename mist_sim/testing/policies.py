"""Rules that policies keep: admissions at the gateway, autoscalers, orders of eviction, routers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from math import nan
from typing import Any

from mist_sim.admission import Admission, GatewayView
from mist_sim.clients.prefixes.prefix_cache import Chain, PrefixCache
from mist_sim.core.candidates import Candidates
from mist_sim.core.request import Request
from mist_sim.eviction import CachedBlocks, Eviction
from mist_sim.lifecycle import Autoscaler, GroupView
from mist_sim.routers import RefusalError, Router, Seeded
from mist_sim.stages import completion
from mist_sim.testing.doubles import FakeView, short_run
from mist_sim.testing.rules import name_of, repeated, require, require_same, stream_of


def check_admission(factory: Callable[[], Admission]) -> None:
    """Check an admission: its answers, that it does not know output lengths, and that a run ends.

    `refusal` returns a text, `delay` 0 or seconds, `queue` a whole number; the request stays as it
    is; two objects of a kind answer alike, whatever the lengths of answers; and each of 60 requests
    to two slow engines ends, served or refused, equally in two runs.
    """
    kind = name_of(factory())
    require(isinstance(factory(), Admission), f"{kind} must be a child of mist_sim.Admission")
    remedy = "decide by the request, the gateway and what was asked before in this run"
    first = repeated(factory, lambda each: list(_answers(each.copy(), output=10)), remedy)
    require(
        first == list(_answers(factory(), output=999)),
        f"{kind} answers by num_output_tokens, which no gateway knows",
    )
    repeated(factory, _ends, remedy)


def _answers(admission: Admission, output: int) -> Iterator[tuple[str, float, int]]:
    kind, draws = name_of(admission), stream_of("check_admission")
    for number in range(300):
        waiting, running, inside, prompt = draws.integers(0, [9, 9, 30, 4000]).tolist()
        views = [FakeView(k, waiting, running, num_gpu_blocks=100, block_size=16) for k in range(2)]
        clients, own = Candidates(views), inside // 2
        gateway = GatewayView(
            time=number / 4,
            candidates=clients,
            decoders=clients,
            num_inside=inside,
            num_tokens=900 * inside,
            of_class=(own, 900 * own),
            num_waiting=waiting,
            is_next=number % 5 > 0,
        )
        request = Request(number, number / 4, completion(prompt + 1, output), prompt + 1, output)
        request = replace(request, priority=number % 3, label=("chat", None)[number % 2])
        request.num_predicted_tokens = None if number % 4 else waiting * 50
        before = deepcopy(request)
        try:
            found = (
                admission.refusal(request, gateway),
                admission.delay(request, gateway),
                admission.queue(request),
            )
        except Exception as error:
            raise AssertionError(f"{kind} raised {error!r} with {gateway}") from error
        reason: object = found[0]
        delay: object = found[1]
        queue: object = found[2]
        require(isinstance(reason, str), f"{kind}.refusal must return a text, got {reason!r}")
        require(
            isinstance(delay, int | float) and not isinstance(delay, bool) and delay >= 0,
            f"{kind}.delay must return 0 or seconds, got {delay!r}",
        )
        require(isinstance(queue, int), f"{kind}.queue must return a whole number, got {queue!r}")
        values = [[getattr(each, item.name) for item in fields(each)] for each in (request, before)]
        require(values[0] == values[1], f"{kind} must not change the request")
        yield found


def _ends(admission: Admission) -> list[tuple[str, float]]:
    found = short_run(admission, num_clients=2, num_requests=60, gap=0.2, gateway=admission)
    return list(zip(found.status, found.finished_at, strict=True))


def check_autoscaler(factory: Callable[[], Autoscaler]) -> None:
    """Check that a policy returns a number of clients, depending only on the view.

    `wanted` returns a whole number >= 0 for any view, even if no client is up and no data are known
    yet, and the same for an equal view and for another object of the same kind.
    """
    policy, views = factory(), list(_views())
    require(isinstance(policy, Autoscaler), f"{name_of(policy)} needs wanted(group)")
    repeated(
        factory, lambda each: [_wanted(each, view) for view in views], "decide by the view alone"
    )


def _wanted(policy: Autoscaler, view: GroupView) -> int:
    kind = name_of(policy)
    try:
        number: Any = policy.wanted(view)
    except Exception as error:
        raise AssertionError(f"{kind}.wanted raised {error!r} for {view}") from error
    require(
        isinstance(number, int) and number >= 0,
        f"{kind}.wanted must return a whole number >= 0, got {number!r} for {view}",
    )
    return int(number)


def _views() -> Iterator[GroupView]:
    """Yield views of groups of 0 to 8 clients, with much and little to do."""
    draws = stream_of("check_autoscaler")
    for number in range(300):
        up, starting, waiting, running = draws.integers(0, [9, 3, 50, 50]).tolist()
        busy, usage, kept = draws.random(3).tolist()
        knows = number % 4 > 0
        yield GroupView(
            now=10.0 * number,
            num_up=up,
            num_starting=starting,
            num_waiting=waiting,
            num_running=running if up else 0,
            busy=busy if up else nan,
            kv_usage=usage if up else nan,
            attainment=kept if knows else nan,
        )


def check_eviction(factory: Callable[[], Eviction]) -> None:
    """Check an order of eviction: all ranks compare, equal ones for equal uses, and a cache holds.

    A cache of few blocks serves 400 prompts twice, with equal hits; it never holds more than fits.
    """
    eviction = factory()
    kind = name_of(eviction)
    require(isinstance(eviction, Eviction), f"{kind} must be a child of mist_sim.Eviction")
    asked = _blocks(eviction.nothing_lost_first)
    ranks = [_rank(eviction.copy(), blocks) for blocks in asked]
    for one, other in pairwise(ranks):
        try:
            require(
                bool(one < other) + bool(other < one) + bool(one == other) == 1,
                f"{kind}.rank: of {one!r} and {other!r} one must be smaller, or both equal",
            )
        except TypeError as error:
            raise AssertionError(f"{kind}.rank: {one!r} and {other!r}: {error}") from error
    remedy = "decide by the blocks and what was told before"
    repeated(factory, lambda each: [_rank(each.copy(), blocks) for blocks in asked], remedy)
    repeated(factory, lambda each: _hits(each.copy()), remedy)


def _rank(eviction: Eviction, blocks: CachedBlocks) -> Any:
    try:
        return eviction.rank(blocks)
    except Exception as error:
        name = name_of(eviction)
        raise AssertionError(f"{name}.rank raised {error!r} for {blocks}") from error


def _blocks(always_found: bool) -> list[CachedBlocks]:
    """Return blocks of all kinds. always_found: each can be found."""
    draws = stream_of("check_eviction")
    found = []
    for number in range(200):
        start, length, uses, used, age = draws.integers(0, [50, 20, 9, 1000, 500]).tolist()
        key = None if number % 10 == 0 and not always_found else f"text {number}"
        found.append(CachedBlocks(key, start, length + 1, uses, used, max(0, used - age)))
    return found


def _hits(eviction: Eviction) -> list[int]:
    """Return the blocks that prompts find which are served one after the other."""
    num_blocks = 40
    draws, cache, hits = stream_of("check_eviction"), PrefixCache(num_blocks, None, eviction), []
    for _ in range(400):
        text, length = draws.geometric(0.2), int(draws.integers(1, 20))
        chain = Chain(((int(text), length),), 1)
        found = cache.find(chain, length).num_found
        cache.hold(chain, found)
        cache.evict(length - found)
        cache.enter(chain, length)
        cache.release(chain)
        held = sum(piece.num_blocks for piece in cache.queue)
        require(held == num_blocks, f"{name_of(eviction)}: {held} of {num_blocks} blocks are there")
        hits.append(found)
    return hits


_REFUSED = -1


@dataclass(frozen=True, slots=True)
class _Entries:
    """KV entries that another client keeps."""

    source: str = "elsewhere"
    engine: int = 0
    num_tokens: int = 0
    num_bytes: float = 1e6


@dataclass(frozen=True, slots=True)
class _Choice:
    """One question to a router, and the same one with other output lengths."""

    request: Request
    twin: Request
    position: int
    candidates: Candidates


def check_router(factory: Callable[[], Router]) -> None:
    """Check that a router chooses a candidate by the rules, and changes no state.

    It returns the `client_id` of one of 1 to 8 candidates, or raises `RefusalError`; changes no
    request, candidate or view; does not depend on output lengths; and repeats its decisions when it
    gets an equal stream (`seed`), or at once when it has no `seed`. It reads only what the views
    of a run offer.
    """
    router = factory()
    require(
        isinstance(router, Router), f"{name_of(router)} needs choose(request, stage, candidates)"
    )
    choices = list(_choices())
    remedy = "use only the stream that seed(rng) gives, and forget earlier runs there"
    first = repeated(factory, lambda each: _decide(each, choices, twin=False), remedy)
    router = factory()
    short_run(router, num_clients=3, num_requests=12, gap=0.7, router=router)
    blind = _decide(factory(), choices, twin=True)
    require_same(router, first, blind, "when output lengths are others", "it may not read them")


def _choices() -> Iterator[_Choice]:
    draws = stream_of("check_router")
    for k in range(300):
        num_clients = int(draws.integers(1, 9)) if k % 3 else 8
        ids = sorted(draws.choice(20, num_clients, replace=False).tolist())
        views = []
        for client_id in ids:
            waiting, running = draws.integers(0, 5, 2).tolist()
            tokens, cached = draws.integers(0, 1_000, 2).tolist()
            load = (tokens if waiting else 0, 7 * running, 100 * running)
            known_of_it = {
                "num_prompt_tokens": 300 * (waiting + running),
                "num_gpu_blocks": 100 * (1 + client_id % 3),
                "block_size": 16,
                "num_remaining_tokens": 40.0 * running + 90.0 * waiting,
                "mean_answer": float(k),
                "seconds_away": 0.001 * (client_id % 4),
                "num_prefill_tokens": tokens + 50 * running,
                "seconds_per_token": 1e-4 * (1 + client_id % 2),
                "role": ("p_heavy", "d_heavy", None)[client_id % 3],
            }
            views.append(FakeView(client_id, waiting, running, *load, cached, **known_of_it))
        prompt, output, another = draws.integers(1, 2_000, 3).tolist()
        content = ((k % 7, prompt),) if k % 4 else ()
        kv = _Entries(num_tokens=prompt) if k % 2 else None
        known = {"session_id": k % 5 if k % 2 else None, "content": content, "kv": kv}
        yield _Choice(
            _request(k, prompt, output, **known),
            _request(k, prompt, another, **known),
            k % 2,
            Candidates(views),
        )


def _request(number: int, prompt: int, output: int, **known: Any) -> Request:
    """Return the request of a choice, eight of which arrive in a second."""
    return Request(number, number / 8, completion(prompt, output), prompt, output, **known)


def _decide(router: Router, choices: list[_Choice], *, twin: bool) -> list[int]:
    """Return a router's decisions, from the beginning of a run."""
    if isinstance(router, Seeded):
        router.seed(stream_of("router"))
    decisions = []
    for choice in choices:
        request = deepcopy(choice.twin if twin else choice.request)
        before, candidates = deepcopy(request), choice.candidates
        case = f"{len(candidates)} candidates for {request.stages[choice.position].kind}"
        try:
            client_id: Any = router.choose(request, request.stages[choice.position], candidates)
        except RefusalError:
            decisions.append(_REFUSED)
            continue
        except Exception as error:
            raise AssertionError(
                f"{name_of(router)}.choose raised {error!r} with {case}"
            ) from error
        ids = [view.client_id for view in choice.candidates]
        require(
            isinstance(client_id, int) and client_id in ids,
            f"{name_of(router)}.choose must return the client_id of a candidate ({ids}), "
            f"got {client_id!r}",
        )
        require(
            _values(request) == _values(before),
            f"{name_of(router)}.choose must not change the request, with {case}",
        )
        decisions.append(client_id)
    return decisions


def _values(request: Request) -> tuple[object, ...]:
    return tuple(getattr(request, item.name) for item in fields(request))
