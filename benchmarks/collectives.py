"""Collectives of real machines beside computed ones: `python -m benchmarks.collectives`.

All-reduces of vLLM (CUDA graphs) and gathers and reduce-scatters of NCCL, as aiconfigurator-core
has them of nine systems (the package is needed), and Vidur's, where they lie beside the repository.
Errors are of seconds: median and nine in ten of their absolute values, in percent. Every system is
scored with itself left out of the fit as well; `--fit` prints the constants of
`hardware/collectives.py`, fitted anew on all.
"""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.optimize import least_squares

from mist_sim.hardware import Interconnect, load_gpu, load_host
from mist_sim.hardware.collectives import (
    Kernels,
    Line,
    Way,
    all_gather,
    all_reduce,
    kernel_lines,
    lines_of,
    send,
)

VIDUR = Path(__file__).parents[2] / "shared/measurements/vidur-operators"
HOSTS = {"l40s": "l40s-pcie4", "rtx_pro_6000_server": "rtx-pro-6000-pcie5"}
GPUS = {
    "a100_sxm": "a100-80gb-sxm",
    "h100_sxm": "h100-sxm",
    "h200_sxm": "h200",
    "b200_sxm": "b200",
    "b300_sxm": "b300",
    "gb200": "gb200",
    "gb300": "gb300",
    "l40s": "l40s",
    "rtx_pro_6000_server": "rtx-pro-6000",
}
SIZES = (0, 2**16, 2**20, 2**24, 2**40)  # bytes; the table's columns lie between them
_KINDS = {"all_reduce": "nccl", "all_gather": "gather", "reduce_scatter": "gather"}
_COLLECTIVES = {"sum": all_reduce, "nccl": all_reduce, "gather": all_gather}
Vector = Any  # numbers, as an array


# --- measurements -------------------------------------------------------------------------------


def measured() -> pd.DataFrame:
    """Return system, ranks, bytes, seconds and kind, of each newest version.

    kind: "sum" (all-reduce of vLLM), "nccl" (of NCCL), "gather" (also reduce-scatter; NCCL).
    The tables count elements of 16 bits. GB200 and GB300 have four GPUs in a node.
    """
    sums = _tables("*/comm/vllm/*/custom_allreduce_perf.parquet")
    sums = sums[sums["kernel_source"] == "vLLM_custom_graph"].assign(kind="sum")
    nccl = _tables("*/comm/nccl/*/nccl_perf.parquet")
    nccl = nccl.assign(kind=nccl["op_name"].map(_KINDS)).dropna(subset="kind")
    nccl = nccl[nccl["nccl_dtype"] == "half"]
    rows = pd.concat([_newest(sums), _newest(nccl)], ignore_index=True)
    one_node = ~rows["system"].isin(["gb200", "gb300"]) | (rows["num_gpus"] <= 4)
    rows = rows[rows["system"].isin(GPUS) & (rows["num_gpus"] <= 8) & one_node]
    found = {
        "system": rows["system"],
        "kind": rows["kind"],
        "ranks": rows["num_gpus"],
        "bytes": rows["message_size"] * 2.0,
        "seconds": rows["latency"] / 1e3,
    }
    return pd.DataFrame(found).sort_values(["system", "kind", "ranks", "bytes"], ignore_index=True)


def _tables(pattern: str) -> pd.DataFrame:
    package = find_spec("aiconfigurator_core")
    if package is None or package.origin is None:
        raise SystemExit(
            "error: aiconfigurator-core is not installed: pip install ./plugins/silicon"
        )
    folder = Path(package.origin).parent / "systems/data"
    parts = []
    for path in sorted(folder.glob(pattern)):
        system, _, _, version = path.relative_to(folder).parts[:4]
        parts.append(pd.read_parquet(path).assign(system=system, version=version))
    return pd.concat(parts, ignore_index=True)


def _newest(rows: pd.DataFrame) -> pd.DataFrame:
    number = rows["version"].str.split(".").map(lambda parts: 1000 * int(parts[0]) + int(parts[1]))
    return rows[number == number.groupby(rows["system"]).transform("max")]


def vidur(ranks: int, kind: str, name: str) -> pd.DataFrame:
    """Return Vidur's medians of 16 MiB and more within a node.

    Below, launches are in them, and vLLM sums with kernels of its own, where Vidur has NCCL.
    """
    rows = pd.read_csv(VIDUR / f"network_{name}_{kind}.csv.gz")
    rows = rows[(rows["num_workers"] == ranks) & (rows["devices_per_node"] == ranks)]
    rows = rows[(rows["rank"] == 0) & (rows["size"] >= 2**24)]
    seconds = rows[f"time_stats.{kind}.median"] / 1e3
    return pd.DataFrame({"bytes": rows["size"].astype(float), "seconds": seconds})


# --- errors -------------------------------------------------------------------------------------


def link(system: str) -> Interconnect:
    """Return the links of a system, in its own host."""
    found = load_gpu(GPUS[system]).interconnect
    return replace(found, host=load_host(HOSTS[system])) if system in HOSTS else found


def before(found: Interconnect) -> Interconnect:
    """Return links as NCCL's tuning constants and, for PCIe, Seesaw have them."""
    if found.kind == "pcie":
        return replace(found, all_reduce="host_shared", host=None)
    return replace(found, kind="xgmi")  # for which nothing was fitted


def errors(rows: pd.DataFrame, links: Callable[[str], Interconnect] = link) -> Vector:
    """Return the logarithm of computed over measured seconds of each row."""
    times = {
        key: _COLLECTIVES[key[1]](links(key[0]), key[2])
        for key in {(str(s), str(k), int(r)) for s, k, r in _keys(rows)}
    }
    computed = [
        times[str(s), str(k), int(r)](size)
        for (s, k, r), size in zip(_keys(rows), rows["bytes"], strict=True)
    ]
    return np.log(computed / rows["seconds"].to_numpy())


def _keys(rows: pd.DataFrame) -> Iterator[Any]:
    return rows[["system", "kind", "ranks"]].itertuples(index=False, name=None)


def score(found: Vector) -> str:
    """Return median and nine in ten of the sizes of errors, in percent."""
    size = 100 * np.expm1(np.abs(np.asarray(found, dtype=float)))
    return f"{np.median(size):.0f}, {np.quantile(size, 0.9):.0f}"


# --- fitting ------------------------------------------------------------------------------------

# in us, GB/s and shares: (start, hop, share) of three ways, latencies of Ampere and Blackwell
_NCCL = (4.9, 0.81, 0.58, 15.8, 0.9, 0.79, 7.7, 4.1, 1.27)
_GATHER = (4.9, 0.82, 0.45, 6.3, 5.5, 1.16, 25.7, 0.48, 1.05)
_FLAT = {2: (True, False, True), 1: (True, True, True)}
_KERNELS = (4.4, 0.6, 218.0, 9.4, 0.98)
_LATENCIES = (1.4, 1.6)


def _ways(numbers: Vector, rounds: int) -> tuple[Way, ...]:
    rows = np.reshape(numbers, (3, 3)).tolist()
    return tuple(
        Way(base * 1e-6, hop * 1e-6, share, flat)
        for (base, hop, share), flat in zip(rows, _FLAT[rounds], strict=True)
    )


def _nccl_lines(numbers: Vector, system: str, kind: str, ranks: int) -> tuple[Line, ...]:
    rounds, shape = (1, numbers[9:18]) if kind == "gather" else (2, numbers[:9])
    ways = _ways(shape, rounds)
    return lines_of(ways, rounds, ranks, _reach(system), _latency(system, numbers))


def _kernel_lines(numbers: Vector, system: str, ranks: int) -> tuple[Line, ...]:
    one, share, rate, two, two_share = numbers[:5]
    ways = Way(one * 1e-6, 0.0, share), Way(two * 1e-6, 0.0, two_share, flat=True)
    kernels = Kernels(*ways, rate * 1e9)
    return kernel_lines(kernels, ranks, _reach(system), _latency(system, numbers))


def _reach(system: str) -> float:
    found = link(system)
    return found.bandwidth * found.efficiency


def _latency(system: str, numbers: Vector) -> float:
    ampere, blackwell = numbers[-2:]
    return float({"a": ampere, "h": 1.0}.get(system[0], blackwell))


def _errors_of(rows: pd.DataFrame, nccl: Vector, kernels: Vector | None) -> Vector:
    """Return the errors of rows in their order, with constants that are being fitted."""
    found = []
    for (system, kind, ranks), part in rows.groupby(["system", "kind", "ranks"]):  # type: ignore[misc]
        lines = _nccl_lines(nccl, system, kind, ranks)
        if kind == "sum":
            lines += _kernel_lines(kernels, system, ranks)
        ways = np.array(lines)
        seconds = (ways[:, :1] + ways[:, 1:] * part["bytes"].to_numpy()).min(axis=0)
        found.append(np.log(seconds / part["seconds"].to_numpy()))
    return np.concatenate(found)


def _least(found: Callable[[Vector], Vector], start: tuple[float, ...]) -> Vector:
    """Return the numbers > 0 of the smallest errors, of which outliers count less."""
    scale = np.array(start)
    fitted = least_squares(
        lambda x: found(np.abs(x)), scale, x_scale=scale, loss="soft_l1", f_scale=0.1
    )
    return np.abs(fitted.x)


def fit(rows: pd.DataFrame) -> tuple[Vector, Vector]:
    """Return NCCL's numbers, fitted on its own collectives, and then those of vLLM's kernels."""
    of_nccl, sums = rows[rows["kind"] != "sum"], rows[rows["kind"] == "sum"]
    nccl = _least(lambda x: _errors_of(of_nccl, x, None), (*_NCCL, *_GATHER, *_LATENCIES))
    kernels = _least(lambda x: _errors_of(sums, nccl, x), (*_KERNELS, *_LATENCIES))
    return nccl, kernels


def left_out(rows: pd.DataFrame, system: str) -> Vector:
    """Return the errors of a system with constants that were fitted on the others.

    The A100 is alone of its generation: NCCL's latencies are then those of Blackwell, the other
    one that is not Hopper, and those of vLLM's kernels Hopper's.
    """
    nccl, kernels = fit(rows[rows["system"] != system])
    if system == "a100_sxm":
        nccl[-2], kernels[-2] = nccl[-1], 1.0
    return _errors_of(rows[rows["system"] == system], nccl, kernels)


# --- tables -------------------------------------------------------------------------------------


def by_system(rows: pd.DataFrame, others: Mapping[str, str]) -> Iterator[str]:
    """Yield the rows of the table of systems. others: scores of what was left out."""
    names = {"sum": "all-reduce", "gather": "gather, scatter"}
    for system, gpu in GPUS.items():
        for kind, name in names.items():
            part = rows[(rows["system"] == system) & (rows["kind"] == kind)]
            alone = others.get(f"{system} {kind}", "")
            yield f"| {gpu} | {name} | {' | '.join(_scores(part))} | {alone} |"


def by_size(rows: pd.DataFrame) -> Iterator[str]:
    """Yield the rows of the table of ranks and sizes, of all-reduces."""
    sums = rows[rows["kind"] == "sum"]
    over_pcie = sums["system"].isin(HOSTS)
    for wires, chosen in (("NVLink", ~over_pcie), ("PCIe", over_pcie)):
        for ranks in (2, 4, 8):
            some = sums[chosen & (sums["ranks"] == ranks)]
            between = (
                some[(some["bytes"] > low) & (some["bytes"] <= high)]
                for low, high in pairwise(SIZES)
            )
            cells = " | ".join(" → ".join(_scores(part)) for part in between)
            yield f"| {wires} | {ranks} | {cells} |"


def over_trays() -> Iterator[str]:
    """Yield the rows of the table of sums between the trays of a rack, in microseconds."""
    rows = _tables("gb300/comm/vllm/*/custom_allreduce_perf.parquet")
    rows = _newest(rows[rows["kernel_source"] == "vLLM_custom_graph"])
    found = link("gb300")
    sizes = {"256 B": 2**8, "64 KiB": 2**16, "1 MiB": 2**20, "16 MiB": 2**24, "256 MiB": 2**28}
    for name, size in sizes.items():
        cells = []
        for ranks in (4, 8, 16):
            here = (rows["num_gpus"] == ranks) & (rows["message_size"] * 2 == size)
            measured_ms = float(rows["latency"][here].iloc[0])
            cells += [1e6 * all_reduce(found, ranks)(size), 1e3 * measured_ms]
        yield f"| {name} | {' | '.join(f'{cell:,.1f}' for cell in cells)} |"


def of_vidur() -> Iterator[str]:
    """Yield the rows of the table of Vidur's measurements, on which nothing was fitted."""
    machines = {
        "A100, NVSwitch": ("a100_dgx", "a100-80gb-sxm", (2, 4, 8)),
        "H100, NVSwitch": ("h100_dgx", "h100-sxm", (2, 4, 8)),
        "A100, NVLink in pairs, PCIe 4.0": ("a100_pairwise_nvlink", "a100-80gb-pcie", (4,)),
        "H100, NVLink in pairs, PCIe 5.0": ("h100_pairwise_nvlink", "h100-pcie", (4,)),
    }
    for title, (name, gpu, sizes) in machines.items():
        found = load_gpu(gpu).interconnect
        own = replace(found, host=load_host("pcie-peer")) if found.kind == "pcie" else found
        for ranks in sizes:
            rows = vidur(ranks, "all_reduce", name)
            times = [all_reduce(each, ranks) for each in (before(own), own)]
            yield f"| {title} | all-reduce, {ranks} | {_of(rows, times)} |"
        if found.kind != "pcie":
            times = [send(each) for each in (before(own), own)]
            yield f"| {title} | send | {_of(vidur(2, 'send_recv', name), times)} |"


def _of(rows: pd.DataFrame, times: list[Callable[[float], float]]) -> str:
    pairs = rows.to_numpy()
    return " | ".join(score([np.log(time(size) / took) for size, took in pairs]) for time in times)


def _scores(part: pd.DataFrame) -> tuple[str, str]:
    return score(errors(part, lambda system: before(link(system)))), score(errors(part))


def others_scores(rows: pd.DataFrame) -> dict[str, str]:
    """Return the scores of every system over NVLink that was left out of the fit."""
    nvlink = rows[~rows["system"].isin(HOSTS)]
    scores = {}
    for system in nvlink["system"].unique():
        kinds = nvlink.loc[nvlink["system"] == system, "kind"]
        found = left_out(nvlink, system)
        scores |= {f"{system} {kind}": score(found[kinds == kind]) for kind in ("sum", "gather")}
    return scores


def main() -> None:
    """Print the tables of docs/background/parallelism.md, and the constants where asked."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--fit", action="store_true", help="fit the constants anew, and print them")
    rows = measured()
    if parser.parse_args().fit:
        nvlink = rows[~rows["system"].isin(HOSTS)]
        for name, numbers in zip(("NCCL", "vLLM's kernels"), fit(nvlink), strict=True):
            print(f"{name}: {', '.join(f'{number:.3g}' for number in numbers)}\n")
    for table in (by_system(rows, others_scores(rows)), by_size(rows), over_trays()):
        print("\n".join(table), end="\n\n")
    if VIDUR.is_dir():
        print("\n".join(of_vidur()))


if __name__ == "__main__":
    main()
