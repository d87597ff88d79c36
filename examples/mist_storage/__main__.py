"""MIST's storage study (its section V-B): where to keep the KV entries of known contexts.

    python examples/mist_storage [TRACE] [--requests N] [--rate R] [--mfu M] [--zipf S]
        [--corpus TOKENS] [--fp8] [--plot FILE] [--jobs N]

256 H100s in 4 racks are 128 clients of Llama-3.1-70B, two GPUs each. TRACE is Azure's
AzureLLMInferenceTrace_conv.csv; without it lengths are drawn from the quantiles of that trace.
docs/background/mist.md explains the columns and what follows.
"""

import argparse
from pathlib import Path

from storage_cases import CLIENTS, CONTEXTS, RATE, REQUESTS, engines, study
from storage_table import draw, table

from mist_sim import MistError

SOURCE = "AzureLLMInferenceTrace_conv.csv of https://github.com/Azure/AzurePublicDataset"


LEAST_REQUESTS = 5 * CLIENTS


def number(least, kind=float, most=float("inf")):
    """Return a reader of numbers of an option, from `least` to `most`."""

    def read(text):
        try:
            value = kind(text)
        except ValueError:
            value = None
        if value is None or not least <= value <= most:
            upper = f" and <= {most:g}" if most < float("inf") else ""
            what = "a whole number" if kind is int else "a number"
            raise argparse.ArgumentTypeError(
                f"must be {what} >= {least:g}{upper}, got {text[:40]!r}"
            )
        return value

    return read


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("trace", nargs="?")
    parser.add_argument("--requests", type=number(LEAST_REQUESTS, int), default=REQUESTS)
    parser.add_argument("--rate", type=number(1e-3), default=RATE)
    parser.add_argument("--mfu", type=number(0.01, most=1.0))
    parser.add_argument("--zipf", type=number(0.0, most=10.0), default=1.22)
    parser.add_argument(
        "--corpus", type=number(CONTEXTS[-1]), default=1e10, help="tokens of shared contexts"
    )
    parser.add_argument("--fp8", action="store_true", help="weights and KV entries in 8 bits")
    parser.add_argument("--plot")
    parser.add_argument("--jobs", type=number(1, int))
    options = vars(parser.parse_args())
    jobs, plot = options.pop("jobs"), options.pop("plot")
    if options["trace"] and not Path(options["trace"]).is_file():
        parser.error(f"there is no file {options['trace']}; it is {SOURCE}, or leave it out")
    options["trace"] = options["trace"] and str(Path(options["trace"]).resolve())
    own = engines(1, options["mfu"], options["fp8"])[0]
    print(f"lengths: {options['trace'] or 'drawn from the quantiles of ' + SOURCE}")
    print(f"a client has room for {16 * own.num_gpu_blocks:,} KV tokens; no two requests share any")
    try:
        printed, highest, together = study(options, jobs)
    except MistError as error:
        parser.error(str(error))
    print(*table(printed, highest, together, options), sep="\n")
    if plot:
        draw(together, plot)


if __name__ == "__main__":
    main()
