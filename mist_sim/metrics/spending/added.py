"""Energy and cost in the summary and the tables of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mist_sim.hardware.gpu_group import num_gpus
from mist_sim.metrics import latency
from mist_sim.metrics.goodput import Slo
from mist_sim.metrics.latency import Array
from mist_sim.metrics.records.recorder import ColumnRecorder
from mist_sim.metrics.requests.figures import request_columns
from mist_sim.metrics.requests.rows import RequestRows
from mist_sim.metrics.requests.window_rates import Mask
from mist_sim.metrics.spending.cost import Bill, api_cost
from mist_sim.metrics.spending.energy import Ledger
from mist_sim.metrics.stats import share
from mist_sim.metrics.tables.tabular import Columns, column, in_order

_MILLION = 1e6


def spending_summary(
    recorder: ColumnRecorder,
    ledger: Ledger,
    bill: Bill | None,
    *,
    slo: Slo,
    warmup: float,
    summary: dict[str, Any],
    client_names: Sequence[str],
) -> dict[str, Any]:
    """Return energy and cost from the end of the warm-up on; empty without GPUs.

    summary: the run's summary, whose output tokens they are divided by.
    """
    if not any(ledger.machines):
        return {}
    requests = request_columns(recorder)
    num_tokens = summary["output_throughput"] * summary["duration"]
    num_good = _good_tokens(requests, slo, warmup) if slo.judges_requests else None
    found: dict[str, Any] = {}
    if not ledger.watts_unknown:
        found = _energy(ledger, warmup, num_tokens, num_good)
        found["power_estimates"] = {
            name: machine.watts_origin
            for name, machine in zip(client_names, ledger.machines, strict=True)
            if machine is not None
        }
    if bill is None:
        return found
    found |= _cost(bill, requests, warmup, num_tokens, num_good)
    found["prices"] = {name: told for k, name in enumerate(client_names) if (told := bill.told(k))}
    return found


def _energy(
    ledger: Ledger, warmup: float, num_tokens: float, num_good: int | None
) -> dict[str, Any]:
    energy, idle = ledger.energy_after(warmup), ledger.idle_energy_after(warmup)
    found = {
        "energy_j": energy,
        "idle_energy_j": idle,
        "average_power_w": share(energy, ledger.end - warmup),
        "energy_per_output_token_j": share(energy, num_tokens),
    }
    return found if num_good is None else found | {"good_tokens_per_j": share(num_good, energy)}


def _cost(
    bill: Bill, requests: Mapping[str, Any], warmup: float, num_tokens: float, num_good: int | None
) -> dict[str, Any]:
    cost = bill.cost_after(warmup)
    found = {
        "cost_usd": cost,
        "cost_per_million_output_tokens_usd": share(cost * _MILLION, num_tokens),
    }
    if bill.options.electricity:
        found["electricity_cost_usd"] = bill.electricity_after(warmup)
    if num_good is not None:
        found["good_tokens_per_usd"] = share(num_good, cost)
    if bill.options.api is not None:
        mine = _ended(requests, warmup)
        asked = float(api_cost(bill.options.api, requests)[mine].sum())
        of_these = float(requests["num_output_tokens"][mine].sum())
        found["api_cost_usd"] = asked
        found["api_cost_per_million_output_tokens_usd"] = share(asked * _MILLION, of_these)
    return found


def _ended(requests: Mapping[str, Any], warmup: float) -> Mask:
    """Return which requests of users finished after the warm-up."""
    own = requests["parent_id"] == requests["request_id"]
    in_time = requests["finished_at"] >= warmup
    return np.asarray(own & (requests["status"] == 0) & in_time)


def _good_tokens(requests: Mapping[str, Any], slo: Slo, warmup: float) -> int:
    """Return the output tokens of requests that finished after the warm-up and kept all limits."""
    return int(requests["num_output_tokens"][_good(requests, slo, warmup)].sum())


def _good(c: Mapping[str, Any], slo: Slo, warmup: float) -> Mask:
    """Return which requests of users finished after the warm-up and kept all limits."""
    kept = slo.kept(
        latency.ttft(c["arrival_time"], c["first_token_at"]),
        latency.tpot(c["decode_time"], c["num_gaps"]),
        latency.e2e(c["arrival_time"], c["finished_at"]),
        c["num_gaps"],
        c.get("group"),
    )
    return np.asarray(kept & _ended(c, warmup))


def _good_tokens_of_clients(recorder: ColumnRecorder, slo: Slo, num_clients: int) -> Array:
    """Return the output tokens that good requests got from each client in the whole run."""
    c = request_columns(recorder)
    visits = recorder.visits.columns()
    rows = RequestRows(recorder).of(visits["request_id"])
    mine = _good(c, slo, 0.0)[rows] & (visits["queued_at"] >= c["sent_at"][rows])
    tokens = np.where(mine, visits["num_output_tokens"], 0)
    return np.asarray(np.bincount(visits["client_id"], tokens, num_clients), dtype=float)


def spent_on_requests(recorder: ColumnRecorder, ledger: Ledger, bill: Bill | None) -> Columns:
    """Return columns of the table of requests: joules, GPU seconds and dollars of each."""
    requests = recorder.requests.columns()
    clients = range(len(ledger.machines))
    nothing = np.zeros(len(requests["request_id"]))
    columns: dict[str, Any] = {}
    if any(ledger.machines):
        if not ledger.watts_unknown:
            columns["energy"] = sum((ledger.energy(k).by_request for k in clients), nothing)
        spent = (of_group for k in clients for of_group in ledger.gpu_seconds(k))
        columns["gpu_seconds"] = sum((of_group.by_request for of_group in spent), nothing)
    if bill is not None:
        columns["cost"] = sum((bill.cost(k).by_request for k in clients), nothing)
        if bill.options.api is not None:
            columns["api_cost"] = api_cost(bill.options.api, requests)
    order = np.argsort(requests["request_id"])
    return in_order(columns, order)


def spent_by_clients(
    recorder: ColumnRecorder, ledger: Ledger, bill: Bill | None, slo: Slo
) -> Columns:
    """Return columns of the table of clients: their totals over the whole run, idle time included.

    good_tokens: output tokens from the client for requests that kept the slo; also per joule and
        per dollar. Only with an slo.
    """
    clients = range(len(ledger.machines))
    if not any(ledger.machines):
        return {}
    columns: dict[str, Any] = {"num_gpus": [num_gpus(machine) for machine in ledger.machines]}
    if not ledger.watts_unknown:
        energy = [ledger.energy(k) for k in clients]
        columns |= {
            "energy": [spent.total for spent in energy],
            "idle_energy": [spent.idle for spent in energy],
            "average_power": [share(spent.total, ledger.end) for spent in energy],
            "power_estimate": [m.watts_origin if m else "-" for m in ledger.machines],
        }
    if bill is not None:
        costs = [bill.cost(k) for k in clients]
        columns["gpu_price"] = [bill.mean_price(k) for k in clients]
        columns["cost"] = [spent.total for spent in costs]
        columns["idle_cost"] = [spent.idle for spent in costs]
    if slo.judges_requests:
        good = _good_tokens_of_clients(recorder, slo, len(ledger.machines)).tolist()
        columns["good_tokens"] = [int(number) for number in good]
        for name, whole in (("j", "energy"), ("usd", "cost")):
            if whole in columns:
                each = zip(good, columns[whole], strict=True)
                columns[f"good_tokens_per_{name}"] = [share(*of_client) for of_client in each]
    return {name: column(values) for name, values in columns.items()}
