"""Records as pandas tables, made when someone asks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mist_sim.metrics import latency
from mist_sim.metrics.latency import Array
from mist_sim.metrics.recorder import ColumnRecorder

if TYPE_CHECKING:
    import pandas as pd


def requests_frame(recorder: ColumnRecorder) -> pd.DataFrame:
    """A row a request, in order of injection; times in seconds from the start of the run."""
    import pandas as pd

    c: dict[str, Any] = recorder.requests.columns()
    reasons = np.array([r or "" for r in recorder.rejections.values], dtype=object)
    frame = pd.DataFrame(
        {
            "request_id": c["request_id"],
            "session_id": pd.array(c["session_id"], dtype="Int64"),
            "status": np.where(c["rejection"] == 0, "finished", "rejected"),
            "arrival_time": c["arrival_time"],
            "first_token_at": c["first_token_at"],
            "finished_at": c["finished_at"],
            "queued": c["queued"],
            "ttft": latency.ttft(c["arrival_time"], c["first_token_at"]),
            "tpot": latency.tpot(
                c["arrival_time"], c["first_token_at"], c["finished_at"], c["num_output_tokens"]
            ),
            "e2el": latency.e2e(c["arrival_time"], c["finished_at"]),
            "num_prompt_tokens": c["num_prompt_tokens"],
            "num_output_tokens": c["num_output_tokens"],
            "num_preemptions": c["num_preemptions"],
            "rejection": reasons[c["rejection"]],
        }
    )
    frame.loc[frame["session_id"] < 0, "session_id"] = pd.NA
    return frame.sort_values("request_id", ignore_index=True)


def stages_frame(recorder: ColumnRecorder, client_names: list[str]) -> pd.DataFrame:
    """A row a stage that was served: where, and when it was queued, started and finished.

    Prefill and decode of one visit share the queue; decode starts at the first token. Stages
    that one client served in a row without a mark between them share their times.
    """
    import pandas as pd

    c: dict[str, Any] = recorder.visits.columns()
    pipelines: list[Any] = recorder.pipelines.values
    parts = []
    for code, kinds in enumerate(pipelines):
        rows = c["stages"] == code
        for position, kind in enumerate(kinds):
            of_engine = kinds[0] == "prefill"
            later, earlier = of_engine and position > 0, of_engine and position == 0
            parts.append(
                pd.DataFrame(
                    {
                        "request_id": c["request_id"][rows],
                        "position": position,
                        "stage": kind,
                        "client": np.array(client_names, dtype=object)[c["client_id"][rows]],
                        "queued_at": c["first_token_at" if later else "queued_at"][rows],
                        "started_at": c["first_token_at" if later else "started_at"][rows],
                        "finished_at": c["first_token_at" if earlier else "finished_at"][rows],
                    }
                )
            )
    columns = [
        "request_id",
        "position",
        "stage",
        "client",
        "queued_at",
        "started_at",
        "finished_at",
    ]
    frame = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=columns)
    order = ["request_id", "queued_at", "position"]
    return frame.sort_values(order, ignore_index=True, kind="stable").drop(columns="position")


def steps_frame(recorder: ColumnRecorder, client_names: list[str]) -> pd.DataFrame:
    """A row a run of steps of the same members, in order of time for each client.

    start, end: seconds. num_steps: engine steps in the run. num_chunks, num_prefill_tokens:
    prompts in prefill and their new tokens in each step. num_decodes, context_sum: decodes, and
    tokens that the cache holds for them before the first step. num_waiting: queue length at the
    end. num_used_blocks: KV blocks held at the start.
    """
    import pandas as pd

    c: dict[str, Any] = recorder.steps.columns()
    frame = pd.DataFrame({name: values for name, values in c.items() if name != "num_gaps"})
    frame["client_id"] = np.array(client_names, dtype=object)[c["client_id"]]
    order = np.argsort(c["client_id"], kind="stable")
    return frame.rename(columns={"client_id": "client"}).iloc[order].reset_index(drop=True)


def token_times(recorder: ColumnRecorder, request_id: int) -> Array:
    """Return when each output token of a request was emitted, in seconds.

    Between the steps that a request shared in decode there may be prefill steps that gave it
    nothing; these are left out.
    """
    tokens: dict[str, Any] = recorder.tokens.columns()
    rows = np.flatnonzero(tokens["request_id"] == request_id)
    times = []
    for row in rows:
        client = int(tokens["client_id"][row])
        first, end = int(tokens["first_step"][row]), int(tokens["end_step"][row])
        ends = np.array(recorder.step_ends[client][first - 1 : end])
        times.append(ends[np.concatenate(([True], _is_decode(recorder, client, first, end)))])
    return np.concatenate(times) if times else np.empty(0)


def _is_decode(recorder: ColumnRecorder, client: int, first: int, end: int) -> Any:
    """Return which of a client's steps [first, end) decoded something."""
    c: dict[str, Any] = recorder.steps.columns()
    mine = c["client_id"] == client
    run_ends = np.cumsum(c["num_steps"][mine])
    runs = np.searchsorted(run_ends, np.arange(first, end), side="right")
    return c["num_decodes"][mine][runs] > 0


def clients_frame(recorder: ColumnRecorder, client_names: list[str]) -> pd.DataFrame:
    """A row a client: visits and tokens served, time in steps, mean batch, peak memory.

    busy: seconds spent in engine steps. mean_decodes: decodes per step, over steps that decode.
    peak_used_blocks: most KV blocks held at the start of a run of steps.
    """
    import pandas as pd

    visits: dict[str, Any] = recorder.visits.columns()
    steps: dict[str, Any] = recorder.steps.columns()
    num_clients = len(client_names)

    def per_client(weights: Any) -> Any:
        return np.bincount(steps["client_id"], weights=weights, minlength=num_clients)

    decode_steps = per_client(np.where(steps["num_decodes"] > 0, steps["num_steps"], 0))
    decoded = per_client(steps["num_decodes"] * steps["num_steps"])
    peak = np.zeros(num_clients, np.int64)
    np.maximum.at(peak, steps["client_id"], steps["num_used_blocks"])
    return pd.DataFrame(
        {
            "client": client_names,
            "num_visits": np.bincount(visits["client_id"], minlength=num_clients),
            "busy": per_client(steps["end"] - steps["start"]),
            "num_steps": per_client(steps["num_steps"]).astype(np.int64),
            "num_prefill_tokens": per_client(
                steps["num_prefill_tokens"] * steps["num_steps"]
            ).astype(np.int64),
            "num_decode_tokens": decoded.astype(np.int64),
            "mean_decodes": np.divide(
                decoded, decode_steps, out=np.zeros(num_clients), where=decode_steps > 0
            ),
            "peak_used_blocks": peak,
        }
    )
