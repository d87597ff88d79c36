"""How long attention and FFN workers take to exchange activations, by the links between them."""

from __future__ import annotations

from dataclasses import replace

from mist_sim.hardware.afd import AfdCoefficients, activation_bytes
from mist_sim.models import ModelSpec
from mist_sim.network import Tenant, Ways


def linked(
    coefficients: AfdCoefficients,
    ways: Ways,
    attention: Tenant,
    ffn: Tenant,
    model: ModelSpec,
) -> AfdCoefficients:
    """Return coefficients in seconds, with the communication of a step that the links allow.

    In each layer every attention GPU sends an equal part of the activations to every FFN GPU, all
    at once, and gets as much back. The links are assumed to carry nothing else. `beta_c`
    comes on top of latencies. attention, ffn: the workers.
    """
    there = ways.exchange(attention.seats, ffn.seats)
    back = ways.exchange(ffn.seats, attention.seats)
    bytes_there, bytes_back = activation_bytes(model)
    per_request = bytes_there * there.time_per_byte + bytes_back * back.time_per_byte
    return replace(
        coefficients,
        # of the requests in the batch of one FFN worker, and all share the links
        alpha_c=model.num_layers * per_request * ffn.data,
        beta_c=coefficients.beta_c + model.num_layers * (there.latency + back.latency),
    )
