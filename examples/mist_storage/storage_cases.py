"""The cases of MIST's Table V as simulations, and the runs of the study."""

from dataclasses import replace
from functools import cache

import numpy as np

import mist_sim as mist
from mist_sim.clients import EngineConfig
from mist_sim.rng import Streams
from mist_sim.scenario.engines.llm_client import llm_clients

CLIENTS, RATE, REQUESTS = 128, 240.0, 19_366  # section V-B; rows of Azure's trace of 2023
CONTEXTS = (4_096, 24_576)
OWN_MFU = 0.69  # of our engine, where it computes 24,576 tokens (docs/guides/kv_retrieval.md)
MODEL = "llama-3.1-70b"
TOKEN = mist.load_model(MODEL).kv_bytes_per_token  # of both GPUs, in bf16
# Table V: clients that reach a store, its bytes, bytes/s to each of them, seconds of the link
CASES = {
    "A": (1, 1e12, 128e9, 0.0),
    "B": (4, 4e12, 32e9, 0.0),
    "C": (32, 32e12, 2e9, 0.0),
    "D": (128, 32e12, 2e9, 20e-3),
    "E": (128, 0.0, 0.0, 0.0),
}
NAMES = {
    "A": "A dedicated",
    "B": "B platform",
    "C": "C rack",
    "D": "D other rack",
    "E": "E no store",
}
ROWS = [
    (context, access, case)
    for context in CONTEXTS
    for access in ("private", "shared")
    for case in CASES
    if (access, case) != ("shared", "E")  # without a store nothing is shared
]


class Homes:
    """Serve a request where its context is kept: at one of the clients that reach that store.

    A private context has a home, drawn at random; a shared one lies in every store, and requests
    go to these in turn. Among the clients at a store it is the one with the fewest outstanding.
    """

    def __init__(self, size, is_private):
        self.size, self.is_private, self.places = size, is_private, {}

    def seed(self, rng):
        self.rng, self.places = rng, {}

    def choose(self, request, stage, candidates):
        groups = len(candidates) // self.size
        if groups <= 1:
            return candidates.least("num_outstanding").client_id
        number = request.request_id
        if number not in self.places:
            self.places[number] = int(self.rng.integers(groups)) if self.is_private else number
        first = self.places[number] % groups * self.size
        return candidates.part(first, first + self.size).least("num_outstanding").client_id


@cache
def zipf(number, exponent):
    """The share of requests that go to the most popular contexts, by how many of them."""
    popularity = np.cumsum(np.arange(1.0, number + 1) ** -exponent)
    return popularity / popularity[-1]


def size_of_token(options):
    """Bytes of the KV entries of a token, which are stored as engines hold them."""
    return TOKEN // 2 if options["fp8"] else TOKEN


def levels(context, case, access, options):
    """The levels of a case: shared contexts are found where there is room for them."""
    _, room, bandwidth, latency = CASES[case]
    found, delays = [1.0], [latency]
    if access == "shared" and options["zipf"] is not None:
        share = zipf(int(options["corpus"] / context), options["zipf"])
        kept = int(room / (context * size_of_token(options)))
        found = [float(share[min(kept, len(share)) - 1])]
        if case == "D":  # what other racks have and the own one has not
            others = float(share[min(4 * kept, len(share)) - 1]) - found[0]
            found.append(others / (1 - found[0]) if found[0] < 1 else 0.0)
            delays = [0.0, latency]
    return [
        mist.StorageLevel(name=f"{n}", read_bandwidth=bandwidth, latency=delay, hit_rate=hit)
        for n, (hit, delay) in enumerate(zip(found, delays, strict=True))
    ]


@cache
def engines(number, mfu, fp8):
    gpu = mist.load_gpu("h100-sxm")
    if mfu is not None:
        gpu = replace(gpu, flops={name: rate * mfu / OWN_MFU for name, rate in gpu.flops.items()})
    config = EngineConfig(
        model=MODEL,
        gpu=gpu,
        tensor_parallel_size=2,
        quantization="fp8" if fp8 else None,
        kv_cache=mist.KvCacheConfig(
            gpu_memory_utilization=0.95, kv_cache_dtype="fp8" if fp8 else "auto"
        ),
        scheduler=mist.ChunkedScheduler(max_num_batched_tokens=2048, max_num_seqs=256),
        sampling=mist.Sampling(generation_config="vllm"),  # the paper times no top-p
        max_model_len=-1,  # the longest that fits
    )
    return llm_clients([f"llm-{n}" for n in range(number)], config)


@cache
def lengths(trace, number):
    if trace:
        rows = list(mist.AzureReader(path=trace, num_requests=number).rows())
    else:
        profile = mist.Profile(num_requests=number, name="azure-conv-2023")
        rows = list(profile.sample_rows(Streams(0).generator("lengths")))
    return [row.num_prompt_tokens for row in rows], [row.num_output_tokens for row in rows]


def serve(point, options):
    """The simulation of one row: context, access, case, requests per second and clients."""
    context, access, case, rate, number = point
    count = max(1, options["requests"] * number // CLIENTS)
    prompts, answers = lengths(options["trace"], count)
    stages, stores = [mist.Prefill, mist.Decode], []
    if case != "E":
        stages.insert(0, mist.KvRetrieval(num_tokens=context))
        kept, size = levels(context, case, access, options), size_of_token(options)
        stores = [
            mist.KvRetrievalClient(f"kv-{n}", bytes_per_token=size, levels=kept, hits="drawn")
            for n in range(number)
        ]
    work = mist.Workload.from_lists(
        [context + prompt for prompt in prompts],
        answers,
        arrivals=mist.PoissonArrivals(rate=rate * number / CLIENTS),
        pipeline=mist.template(stages),
    )
    llm = engines(number, options["mfu"], options["fp8"])
    router = Homes(min(CASES[case][0], number), access == "private")
    return mist.Simulation(clients=[*stores, *llm], workload=work, router=router)


def figures(result):
    """Quantiles of the end-to-end latency, and what the clients sustain when they are full."""
    requests, clients = result.requests, result.clients
    ends = np.sort(requests["finished_at"].dropna())
    first, last = int(0.3 * len(ends)), int(0.7 * len(ends))
    times = requests["e2el"].dropna()
    arrived = float(requests["arrival_time"].max())
    stores = clients[clients["num_gpus"] == 0]
    num_engines = len(clients) - len(stores)
    return {
        "sustained": (last - first) / (ends[last] - ends[first]) * CLIENTS / num_engines,
        "store_load": float(stores["busy"].mean()) / arrived if len(stores) else 0.0,
        "cdf": [float(times.quantile(q)) for q in np.linspace(0, 1, 101)],
    }


def run(points, options, jobs):
    """A summary for each point, from as many processes as there are cores."""
    asked = {"point": points, "options": [options]}
    found = mist.study(serve, vary=asked, figures=figures, seeds=[1], jobs=jobs)
    failures = [failure for each in found.points for failure in each.failures]
    if failures:
        raise SystemExit(f"error: {failures[0]}")
    return {point: each.summaries[0] for point, each in zip(points, found.points, strict=True)}


def highest_stable(printed, options, jobs):
    """The largest rate that one rack keeps up with, tried downwards from the most it may be."""
    found = {row: options["rate"] for row in printed if printed[row]["stability"] == "stable"}
    most = {row: most_of(row, printed, options) for row in printed}
    share = 1.0
    while len(found) < len(printed) and share > 0.5:
        share -= 0.08
        asked = {
            (*row, share * most[row], CLIENTS // 4): row for row in printed if row not in found
        }
        for point, each in run(list(asked), options, jobs).items():
            if each["stability"] == "stable":
                found[asked[point]] = point[3]
    return found


def most_of(row, printed, options):
    """What a case may keep up with: what it sustains under the printed rate, or more.

    More than arrives is no sustained rate: a queue of the beginning was served then. And where a
    store is overloaded, all that waits is one long batch, whose engines idle until it ends: such a
    case may do as much as the store carries, and the other cases sustain.
    """
    context, access, case = row
    own = printed[row]["sustained"]
    best = max(each["sustained"] for other, each in printed.items() if other[:2] == row[:2])
    if case != "E" and own < 0.8 * best and printed[row]["store_load"] > 1:
        carried = CASES[case][2] / (context * size_of_token(options)) * CLIENTS
        own = min(best, carried / found_share(context, access, case, options))
    return min(own, options["rate"])


def study(options, jobs):
    """What the printed rate does, the highest stable rates, and one that all cases keep up with.

    Racks share nothing but case D's link, so that one of them with a quarter of the conversations
    tells the first two; the last runs all conversations on all racks.
    """
    printed = run([(*row, options["rate"], CLIENTS // 4) for row in ROWS], options, jobs)
    printed = {point[:3]: each for point, each in printed.items()}
    highest = highest_stable(printed, options, jobs)
    common = {}
    for context in CONTEXTS:
        rates = [  # half of what is sustained, where runs are too short to tell
            highest.get(row, 0.5 * printed[row]["sustained"]) for row in ROWS if row[0] == context
        ]
        common |= {row: 0.95 * min(rates) for row in ROWS if row[0] == context}
    together = run([(*row, common[row], CLIENTS) for row in ROWS], options, jobs)
    return printed, highest, {point[:4]: each for point, each in together.items()}


def found_share(context, access, case, options):
    """The share of the contexts that are found."""
    missed = 1.0
    for level in levels(context, case, access, options) if case != "E" else []:
        missed *= 1 - level.hit_rate
    return 1 - missed
