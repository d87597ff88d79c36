"""Bounds of input: of scenarios, models, GPUs and traces.

They lie far beyond any real use, yet stop a slip of the keyboard before it costs hours, all memory,
or the digits of a sum. Each bound states its reason.
"""

from __future__ import annotations

from collections.abc import Mapping

# --- files, in bytes

SCENARIO_BYTES = 2**17
"""Of a scenario: 128 KiB. The parser takes about 10 us a byte, so 1 s; data belongs in a trace."""

SPEC_BYTES = 2**20
"""Of JSON files other than a model's config.json: 1 MiB. Real ones have up to 0.1 MiB."""

CONFIG_BYTES = 2**23
"""Of a model's config.json: 8 MiB. Checkpoints that name the format of every expert have 3."""

TOML_BYTES = 2**17
"""Of the spec of a GPU, a host or a topology: 128 KiB; real ones have up to 5. The parser is
written in Python."""

TABLE_BYTES = 2**25
"""Of a table of measured times, unpacked: 32 MiB. The largest that we know of has 3 MiB."""

TABLE_CELLS = 2**23
"""Of a table: 8 million; the largest that we know of, 260,000 rows of kernels, has 4."""

RUN_BYTES = 2**30
"""Of a table of a run that was saved: 1 GiB. A day of 8 requests/s has 60 MiB of requests."""

RUN_CELLS = 2**27
"""Of a table of a run that was saved: 134 million, which are 1 GiB unpacked. A day of 8 requests/s
has 40 million."""

MEASURED_TIMES = 10**6
"""Of a law that draws from them: a million, which are 8 MiB."""

LINE_LENGTH = 2**22
"""Characters of a line of a trace or a table, or of a conversation: 4 million. A prompt of a
million tokens has 1.3 million of hash ids in blocks of 16, and 4 million as text. Without such a
bound a file without line ends is read whole."""

GRID_POINTS = 2**19
"""Of a table of times arranged as a grid: half a million values; the largest known
has 58,000."""

ANSWER_LINE_BYTES = 2**15
"""Of a line of a server's answer, and of what the system keeps of it unread: 32 KiB. vLLM's lines,
one for each token, have 0.3. Every request in flight may hold one, and a thousand stay so under 200
MiB."""

ANSWER_BYTES, ANSWER_BYTES_A_TOKEN = 2**18, 2**12
"""Of a server's answer to a request, headers and framing included: 256 KiB, and 4 KiB for each
token asked."""

ANSWER_READ_BYTES = 2**13
"""Of an answer that are read at once: 8 KiB, some thirty tokens. The libraries below hold several
copies of them, for every request in flight."""

DOWNLOAD_BYTES = 2**34
"""Of a trace that is fetched: 16 GiB, 200 million rows of 80 bytes."""

NESTING = 50
"""Levels of lists and mappings in a scenario, and dots in a key of a spec; real ones have 8 and 2.
The parsers' time grows with the square of them."""

# --- text, in characters

NAME_LENGTH = 100
"""Of a client's name, which stands in columns of tables and in names of files (of 255 bytes)."""

TEXT_LENGTH = 4096
"""Of any other text: the longest path that Linux takes."""

QUANTITY_LENGTH = 60
"""Of a number with its unit: the longest that a float is written with has 24, and its unit 7."""

# --- numbers

COUNT = 10**9
"""Of requests, tokens, blocks, ranks, priorities. A billion of a billion is still exact in 64 bits;
a run with a billion requests takes days."""

GROWN = 100_000
"""Stages and children that outcomes add to one user's request. A search of a tree with ten branches
and four levels adds 20,000; a stage that always adds itself would never end."""

COPIES = 10_000
"""Of clients with all their engines, and of runs: an engine takes a millisecond to make."""

SEED = 2**63 - 1
"""Of random streams: what a signed integer of 64 bits holds, as the seeds of replications do."""

NUMBER = (1e-12, 1e12)
"""Smallest but 0, and largest, of plain numbers: shares, factors, parameters of laws."""

QUANTITIES: Mapping[str, tuple[float, float]] = {
    # from far below a clock tick to 32 years, at whose end a clock still resolves 0.2 us
    "duration": (1e-12, 1e9),
    # a request in 32 years; a billion a second
    "rate": (1e-9, 1e9),
    # a byte, and less than a bit a second; an exabyte
    "size": (1.0, 1e18),
    "bandwidth": (0.1, 1e18),
    # from one operation a second to a million times the fastest accelerators
    "compute rate": (1.0, 1e24),
    # a milliwatt; a gigawatt
    "power": (1e-3, 1e9),
    # a millionth of a dollar; a billion of them
    "price": (1e-6, 1e9),
    "price of electricity": (1e-6, 1e9),
    "price of tokens": (1e-6, 1e9),
}
"""Smallest but 0, and largest, of quantities with a unit, in base units, by kind."""

BUNDLE = {"attention_workers": 1024, "ffn_workers": 1024, "slots": 2**16, "batches": 64}
"""Of a bundle of attention and FFN workers: a hundred workers, some hundred slots and two or three
batches are in use. The loads of all workers are computed some steps ahead, for every batch."""

TRACE_TIME = 1e11
"""Seconds, of a time in a trace, which may be a date's since 1970: 3,000 years."""

CAPTURE_SIZE = 2**20
"""Tokens of a CUDA graph. vLLM captures graphs of up to 1,024; here their sizes are a list, too."""

# --- models

LAYERS = 10_000
"""Of a model; the deepest have some 130. Windows and experts are kept layer by layer."""

HEADS = 100_000
"""Query heads of a model; BLOOM has 112. Possible splits over ranks are tried one by one."""

MODEL_SIZE = 10**9
"""Any other size of a model: vocabularies have a quarter of a million, contexts ten million."""
