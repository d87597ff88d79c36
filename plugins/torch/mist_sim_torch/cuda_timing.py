"""Seconds of a call on a CUDA device: launches captured as a graph, told by the device's events.

A graph keeps the host's launches out of the time, so that kernels alone are timed at any step size.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from mist_sim.hardware.predictors.measured.timing import Call

WARM_SECONDS = 0.05  # until the clock is that of a busy card


def current(device: torch.device) -> AbstractContextManager[Any]:
    """Return a context in which streams, events and graphs are the device's own."""
    if device.type != "cuda":
        return nullcontext()
    context: AbstractContextManager[Any] = torch.cuda.device(device)
    return context


def captured(call: Call) -> Call:
    """Capture a call's launches as a CUDA graph; return a function that replays it."""
    aside: Any = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):  # kernels are chosen and memory is taken before capturing
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(aside)
    graph: Any = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    replay: Call = graph.replay
    return replay


def seconds_on_device(call: Call) -> float:
    """Return the seconds of a call by the events of the device.

    A run before it keeps the device busy while the host queues the timed one: the time has no
    wait for the host, and finds the caches as a step leaves them.
    """
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    call()
    begin.record()
    call()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) * 1e-3
