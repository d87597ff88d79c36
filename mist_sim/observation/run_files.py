"""The folder of an observed run: requests, answers, and a scenario to replay them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from mist_sim.core.content_ids import leading
from mist_sim.errors import ScenarioError, in_words
from mist_sim.observation.sender import Observed
from mist_sim.output import write_text
from mist_sim.scenario import Scenario
from mist_sim.scenario.format import yaml_text
from mist_sim.traces import TraceRow
from mist_sim.traces.writers import WRITERS

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
