"""Rules that every router keeps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, fields
from typing import Any

from mist_sim.core.candidates import Candidates
from mist_sim.core.request import Request
from mist_sim.routers import RefusalError, Router, Seeded
from mist_sim.stages import completion
from mist_sim.testing.doubles import FakeView, short_run
from mist_sim.testing.rules import name_of, repeated, require, require_same, stream_of

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
