"""Rules that every admission at the gateway keeps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import fields, replace

from mist_sim.admission import Admission, GatewayView
from mist_sim.core.candidates import Candidates
from mist_sim.core.request import Request
from mist_sim.stages import completion
from mist_sim.testing.doubles import FakeView, short_run
from mist_sim.testing.rules import name_of, repeated, require, stream_of


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
