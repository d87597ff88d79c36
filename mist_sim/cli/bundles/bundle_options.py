"""Options of `mist afd`: coefficients, what to derive them from, and limits."""

from __future__ import annotations

from typing import Annotated

import typer

Slots = Annotated[
    str,
    typer.Option(
        metavar="N[,N...]",
        help="Slots of an attention worker in one batch (B), or several to choose from.",
    ),
]
Batches = Annotated[
    str,
    typer.Option(metavar="N[,N...]", help="Batches in flight, or several to choose from."),
]

# the coefficients of a step
Coefficients = Annotated[
    str | None,
    typer.Option(
        metavar="NAME|FILE",
        help="Published coefficients, or a CSV file of measured times to fit them to.",
    ),
]
AlphaA = Annotated[
    float | None, typer.Option(help="Attention, time for each token that a worker's slots hold.")
]
BetaA = Annotated[float | None, typer.Option(help="Attention, fixed time.")]
AlphaF = Annotated[
    float | None, typer.Option(help="FFN, time for each request in the batch of an FFN worker.")
]
BetaF = Annotated[float | None, typer.Option(help="FFN, fixed time.")]
AlphaC = Annotated[
    float | None, typer.Option(help="Communication both ways, time for each of these requests.")
]
BetaC = Annotated[float | None, typer.Option(help="Communication both ways, fixed time.")]
Cycle = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="The unit of the coefficients, such as '1 us'; without one, results are in cycles.",
    ),
]

# to derive them from; the texts read on from one to the next
Model = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Derive coefficients, in seconds: of this model ..."),
]
Gpu = Annotated[str | None, typer.Option(metavar="NAME", help="... on these GPUs,")]
FfnGpu = Annotated[str | None, typer.Option(metavar="NAME", help="or on others for the FFN;")]
FfnCards = Annotated[int | None, typer.Option(min=1, help="cards of an FFN worker;")]
NetworkBandwidth = Annotated[
    str | None, typer.Option(metavar="RATE", help="at which activations reach each of them;")
]
AttentionBase = Annotated[
    str | None,
    typer.Option(
        metavar="TIME", help="fixed time of a layer's attention, reading the weights without it;"
    ),
]
FfnBase = Annotated[str | None, typer.Option(metavar="TIME", help="of a layer's FFN, the same;")]
CommunicationBase = Annotated[
    str | None, typer.Option(metavar="TIME", help="of a layer's transfers, none without it;")
]
MtpDepth = Annotated[
    int | None, typer.Option(min=0, max=64, help="further tokens of a request in a step;")
]
ExpertLoadImbalance = Annotated[
    float | None, typer.Option(help="tokens of the busiest card over the mean.")
]

# limits
MaxTpot = Annotated[
    str | None, typer.Option(metavar="TIME", help="Longest mean time between two tokens.")
]
MaxKvTokens = Annotated[
    int | None, typer.Option(min=1, help="Tokens that an attention worker has memory for.")
]
KvMemory = Annotated[
    str | None, typer.Option(metavar="SIZE", help="The same as a size, with --model.")
]
