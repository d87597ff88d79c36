"""Tables of results as columns: in files as pandas writes them, and in frames."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mist_sim.metrics.records.columns import Table
from mist_sim.metrics.tabular import (
    WithMissing,
    column,
    concatenated,
    frame_of,
    in_order,
    num_rows,
    texts,
    write_parquet,
)
from tests.effort import examples

FLOATS = st.floats(allow_nan=True, width=64)
ROWS = st.lists(
    st.tuples(st.text(max_size=5), FLOATS, st.integers(0, 9), st.booleans(), st.booleans()),
    max_size=30,
)


def columns_of(rows):
    words, floats, numbers, flags, missing = zip(*rows, strict=True) if rows else [()] * 5
    return {
        "text": texts(words),
        "float": np.array(floats, dtype="f8"),
        "long": np.array(numbers, dtype="i8"),
        "short": np.array(numbers, dtype="i4"),
        "flag": np.array(flags, dtype=bool),
        "maybe": WithMissing(np.array(numbers, dtype="i8"), np.array(missing, dtype=bool)),
    }


@examples(60)
@given(rows=ROWS)
def test_a_file_reads_back_as_the_frame(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("tabular") / "table.parquet"
    write_parquet(columns_of(rows), path)
    pd.testing.assert_frame_equal(pd.read_parquet(path), frame_of(columns_of(rows)))


@pytest.mark.skipif(int(pd.__version__.partition(".")[0]) < 3, reason="pandas 2 writes other types")
@pytest.mark.parametrize("num_rows", [0, 1, 7, 30_000])
def test_a_file_has_the_bytes_that_pandas_writes(tmp_path, num_rows):
    rows = [
        (f"client-{k % 3} é", np.nan if k % 5 == 0 else k / 7, k % 11, k % 2 == 0, k % 4 == 0)
        for k in (number * 7_919 % 1_009 for number in range(num_rows))
    ]
    write_parquet(columns_of(rows), tmp_path / "ours")
    frame_of(columns_of(rows)).to_parquet(tmp_path / "theirs", index=False)
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()


def test_columns_of_lists_have_the_types_that_pandas_gives_them():
    for values in ([1, 2], [1, 2.5], ["a", "bc"], [True, False], []):
        expected = pd.DataFrame({"x": pd.Series(values, dtype=None if values else object)})
        pd.testing.assert_frame_equal(frame_of({"x": column(values)}), expected)


def test_rows_come_in_another_order_and_tables_one_after_the_other():
    parts = [{"a": np.arange(2)}, {"a": np.arange(3)}]
    whole = concatenated(parts)
    assert num_rows(whole) == 5
    assert whole["a"].tolist() == [0, 1, 0, 1, 2]
    maybe = WithMissing(np.arange(3), np.array([True, False, False]))
    ordered = in_order({"m": maybe}, np.array([2, 0, 1]))["m"]
    assert ordered.values.tolist() == [2, 0, 1]
    assert ordered.missing.tolist() == [False, True, False]


@examples(60)
@given(
    steps=st.lists(
        st.one_of(
            st.just("read"), st.just("pack"), st.tuples(st.integers(-9, 9), FLOATS, st.booleans())
        ),
        max_size=40,
    )
)
def test_a_table_has_every_row_once_whenever_it_is_read(steps):
    """Arrays that were handed out stay as they are when rows follow."""
    table, rows, handed_out = Table(a="i4", b="f8", c="?"), [], []
    for step in [*steps, "read"]:
        if step == "read":
            handed_out.append((table.columns(), list(rows)))
        elif step == "pack":
            table.pack()
        else:
            rows.append(step)
            table.rows.append(step)
    for columns, expected in handed_out:
        found = list(zip(*(columns[name].tolist() for name in "abc"), strict=True))
        np.testing.assert_equal(found, expected)


def test_a_table_holds_each_value_once():
    table = Table(a="i8")
    table.rows.extend((k,) for k in range(10_000))
    first, again = table.columns()["a"], table.columns()["a"]
    assert np.shares_memory(first, again)
    assert not first.flags.owndata  # a view of what the table holds, and no copy
