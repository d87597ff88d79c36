"""Run damaged inputs of every kind, go on after a fault, and say what was found.

    python -m tests.damage [--cases 100000] [--seed N] [--kinds scenario,file] [--first NUMBER]

Without a seed a new one is drawn. A fault is printed with its seed and its number, from which
`--seed SEED --kinds KIND --first NUMBER --cases 1` makes it again.
"""

import argparse
import os
import secrets
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from pathlib import Path

_GROWTH = 40.0  # MiB by which a case may raise the peak without a word


def main() -> int:
    """Return how many cases failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cases", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--kinds", default="")
    parser.add_argument("--first", type=int, default=0, help="number of the first case of a kind")
    options = parser.parse_args()
    seed = secrets.randbelow(10**9) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    os.environ["FUZZ_SEED"] = str(seed)
    os.environ["COLUMNS"] = "80"
    with tempfile.TemporaryDirectory() as folder:
        os.environ["MIST_SIM_CACHE"] = str(Path(folder, "cache"))
        os.chdir(folder)
        return _campaign(options.cases, options.kinds.split(",") if options.kinds else [], options)


def _campaign(cases: int, kinds: list[str], options: argparse.Namespace) -> int:
    from tests.damage.cases import KINDS, furnish
    from tests.damage.limits import TooLong, peak_mib

    warnings.simplefilter("error")
    furnish()
    chosen = {name: KINDS[name] for name in kinds or KINDS}
    total = sum(share for _, share in chosen.values())
    start, done, failed, slowest = time.monotonic(), 0, 0, (0.0, "")
    for name, (do, share) in chosen.items():
        taken: Counter[bool] = Counter()
        for number in range(options.first, options.first + max(1, cases * share // total)):
            before, begun = peak_mib(), time.process_time()
            try:
                taken[do(number)] += 1
            except (Exception, TooLong):
                failed += 1
                print(f"--- {name} {number}", flush=True)
                traceback.print_exc(limit=-6, file=sys.stdout)
            done += 1
            slowest = max(slowest, (time.process_time() - begun, f"{name} {number}"))
            if (grown := peak_mib() - before) > _GROWTH:
                print(f"{name} {number}: {grown:.0f} MiB more, {peak_mib():.0f} in all", flush=True)
        print(
            f"{name}: {taken[True]} read, {taken[False]} refused; peak {peak_mib():.0f} MiB, "
            f"{time.monotonic() - start:.0f} s",
            flush=True,
        )
    warnings.simplefilter("default")
    print(f"{done} cases, {failed} failed; slowest {slowest[0]:.2f} s ({slowest[1]})", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(min(main(), 100))
