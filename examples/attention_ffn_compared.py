"""Decode in three ways on the same 48 H200s: with the prompts, apart from them, and with FFN apart.

All serve the same requests with DeepSeek-V3. Prompts have 16 GPUs where they are apart, so that 32
decode: as 32 replicas of the attention that share their experts, or as a bundle with 16 of them for
attention and 16 for the FFN. Engines' own time a step is left out, since nobody has measured it
for bundles. What a bundle's layers send is timed by the links of the topology.

python attention_ffn_compared.py [REQUESTS]
"""

import sys

import mist_sim as mist
from mist_sim.clients import AfdClient
from mist_sim.hardware.afd import FfnCards, step_coefficients

MODEL, GPU = mist.load_model("deepseek-v3"), mist.load_gpu("h200")
NIC = 50e9  # bytes/s of each GPU to other nodes
NO_OVERHEAD = mist.EngineOverhead(
    step=0.0, prefill_step=0.0, sequence=0.0, request=0.0, prompt_token=0.0
)
PROMPT, ANSWER = 400, 400  # tokens
RATES = (50.0, 100.0)  # requests a second
SLO = mist.Slo(ttft=1.0, tpot=0.05)


def engines(name, number, **options):
    return [
        mist.llm_client(f"{name}{k}", model=MODEL, gpu=GPU, overhead=NO_OVERHEAD, **options)
        for k in range(number)
    ]


def prefill():
    return engines("prefill", 2, tensor_parallel_size=8, role="prefill")


def bundle(attention_workers, ffn_cards, **options):
    cards = FfnCards(gpu=GPU, num_cards=ffn_cards, network_bandwidth=NIC)
    step = step_coefficients(MODEL, GPU, cards)
    return AfdClient(
        "bundle",
        model="deepseek-v3",
        attention_workers=attention_workers,
        ffn_gpus=ffn_cards,
        slots=64,
        alpha_a=step.alpha_a,
        beta_a=step.beta_a,
        alpha_f=step.alpha_f,
        beta_f=step.beta_f,
        communication="topology",
        cycle_s=1.0,
        **options,
    )


def experts(name, number, gpus, **options):
    return engines(name, number, data_parallel_size=gpus, enable_expert_parallel=True, **options)


CASES = {
    "together: 6 x TP 8": lambda: engines("llm", 6, tensor_parallel_size=8),
    "together: 3 x DP 16": lambda: experts("llm", 3, 16),
    "apart: 4 x TP 8": lambda: (
        prefill() + engines("decode", 4, tensor_parallel_size=8, role="decode")
    ),
    "apart: DP 32": lambda: prefill() + experts("decode", 1, 32, role="decode"),
    "bundle: 16A + 16F": lambda: [*prefill(), bundle(16, 16)],
    "  empty slots for free": lambda: [*prefill(), bundle(16, 16, static_graph=False)],
    "bundle: 8A + 24F": lambda: [*prefill(), bundle(8, 24)],
    "bundle: 24A + 8F": lambda: [*prefill(), bundle(24, 8)],
}


def served(clients, rate, num_requests):
    """Return the summary of a run. Places and links are the same for all."""
    return (
        mist.Simulation(
            clients=clients,
            workload=mist.Workload.from_lists(
                [PROMPT] * num_requests,
                [ANSWER] * num_requests,
                arrivals=mist.PoissonArrivals(rate=rate),
            ),
            router=mist.LeastOutstandingRouter(),
            network=mist.Fabric(topology="hgx-h200", nodes=6, nic=NIC, spans_nodes=True),
            slo=SLO,
            seed=1,
        )
        .run()
        .summary
    )


def main(num_requests):
    print(f"{'':23}{'p99 TTFT, ms':>14}{'p99 TPOT, ms':>14}{'good':>14}")
    heads = [f"{rate:7.0f}" for rate in RATES]
    print("".join([f"{'requests a second':23}", *(3 * heads)]))
    for name, clients in CASES.items():
        runs = [served(clients(), rate, num_requests) for rate in RATES]
        print(
            f"{name:23}"
            + "".join(f"{run['p99_ttft_ms']:7.0f}" for run in runs)
            + "".join(f"{run['p99_tpot_ms']:7.1f}" for run in runs)
            + "".join(f"{run['good_request_fraction']:7.0%}" for run in runs)
        )


if __name__ == "__main__":
    number = sys.argv[1] if len(sys.argv) > 1 else "2000"
    if not number.isdecimal() or number == "0":
        sys.exit(f"REQUESTS must be a whole number above 0, got {number!r}")
    main(int(number))
