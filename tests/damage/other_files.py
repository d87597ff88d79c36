"""Damaged files of all kinds that a scenario or a verb names, scenarios and traces apart."""

import io
import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from tests.damage.draws import NUMBERS, TEXTS, Draw, worn
from tests.damage.files_of_measurements import MEASUREMENTS
from tests.damage.files_of_scenarios import NAMED, Files
from tests.damage.scenarios import places, put
from tests.damage.traces import with_another_value

KINDS = {**NAMED, **MEASUREMENTS}


def damaged_files(number: int) -> tuple[str, Files, Callable[[], object]]:
    """Return a kind, its files, one of which is damaged, and what reads them."""
    draw = Draw(f"file {number}")
    kind = draw.choice(sorted(KINDS))
    make, read = KINDS[kind]
    files = dict(make(draw))
    name = draw.choice(sorted(files))
    files[name] = _damaged(draw, name, files[name])
    return kind, files, read


def write(files: Mapping[str, bytes], draw: Draw) -> None:
    """Write files into the working directory; now and then one is no file at all."""
    for name, content in files.items():
        path = Path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        how = draw.share()
        if how > 0.02:
            path.write_bytes(content)
        elif how > 0.015:
            path.mkdir()
        elif how > 0.01 and hasattr(os, "mkfifo"):
            os.mkfifo(path)
        elif how > 0.005:
            path.symlink_to(path.name)


def remove(files: Mapping[str, bytes]) -> None:
    """Remove what `write` wrote."""
    for name in files:
        top = Path(Path(name).parts[0])
        if top.is_dir() and not top.is_symlink():
            shutil.rmtree(top)
        else:
            top.unlink(missing_ok=True)


_EMPTY = [b"", b"\n", b"\0" * 50, b"x", b"{}", b"[]", b"a,b\n", b"\xff\xfe", b"0", b"{"]


# --- damage -----------------------------------------------------------------------------------


def _damaged(draw: Draw, name: str, content: bytes) -> bytes:
    how = draw.share()
    if name.endswith(".parquet") and how < 0.7:
        return _other_columns(draw, content)
    if name.endswith(".json") and how < 0.5:
        return _other_values(draw, content)
    if how < 0.2:
        return worn(draw, content)
    if how < 0.25:
        return draw.choice(
            [b"", b"\n", b"\0" * 50, b"x", b"{}", b"[]", b"a,b\n", b"\xff\xfe", b"0"]
        )
    text = content.decode("utf-8", "replace")
    for _ in range(draw.choice([1, 1, 2, 4])):
        text = draw.choice([with_another_value, _other_lines, _other_cells])(draw, text)
    return text.encode("utf-8", "surrogatepass")


def _other_lines(draw: Draw, text: str) -> str:
    """Lose, double or move a line."""
    lines = text.splitlines(keepends=True) or [""]
    line = lines.pop(draw.below(len(lines)))
    where = draw.below(len(lines) + 1)
    lines[where:where] = draw.choice([[], [], [line, line], [line], ["\n"], [line.rstrip(), line]])
    return "".join(lines)


def _other_cells(draw: Draw, text: str) -> str:
    """Change a cell, or a column of all rows."""
    rows = [line.split(",") for line in text.splitlines()] or [[""]]
    row = draw.choice(rows)
    column = draw.below(len(row))
    value = str(draw.choice([*NUMBERS, *TEXTS]))[:2_000]
    how = draw.share()
    if how < 0.6:
        row[column] = value
    else:
        for each in rows[draw.below(2) :]:
            if column < len(each):
                each[column : column + 1] = [] if how < 0.75 else [value]
    return "\n".join(map(",".join, rows)) + "\n"


def _other_values(draw: Draw, content: bytes) -> bytes:
    data = json.loads(content)
    found = list(places(data))
    for _ in range(draw.choice([1, 1, 2, 3])):
        place = draw.choice(found)
        try:
            put(data, place, draw.choice([*NUMBERS, *TEXTS, [], {}, [1], {"a": 1}, [[1.0]]]))
        except (LookupError, TypeError):  # what held it has changed
            continue
    return json.dumps(data).encode()


def _other_columns(draw: Draw, content: bytes) -> bytes:
    """Lose a column of a table, or change its type, its values or its name."""
    frame = pd.read_parquet(io.BytesIO(content))
    name = draw.choice(list(frame.columns))
    how = draw.below(7)
    if how == 0:
        frame = frame.drop(columns=name)
    elif how == 1:
        frame[name] = "x"
    elif how == 2:
        frame[name] = None
    elif how == 3:
        frame[name] = draw.choice([0.0, -1.0, np.nan, np.inf, 1e300, 1e-300, 3.5])
    elif how == 4:
        frame = frame.rename(columns={name: draw.choice(["x", *frame.columns])})
    elif how == 5:
        frame = frame.iloc[: draw.choice([0, 1, 3])]
    else:
        frame[name] = [[1, 2]] * len(frame)
    out = io.BytesIO()
    frame.loc[:, ~frame.columns.duplicated()].to_parquet(out)
    return out.getvalue()
