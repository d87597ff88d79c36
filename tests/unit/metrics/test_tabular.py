"""Tables of results as columns: in files as pandas writes them, and in frames."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mist_sim.core.columns import Table
from mist_sim.metrics.spending import Spent
from mist_sim.metrics.tables import (
    Coded,
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

WHOLE = st.one_of(st.integers(-9, 9), st.integers(-(2**63), 2**63 - 1))
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
    frame = frame_of(columns_of(rows))
    repeating = frame.select_dtypes(exclude="floating").columns.tolist()
    frame.to_parquet(tmp_path / "theirs", index=False, use_dictionary=repeating)
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
        st.one_of(st.just("read"), st.just("pack"), st.tuples(WHOLE, FLOATS, st.booleans())),
        max_size=40,
    )
)
def test_a_table_has_every_row_once_whenever_it_is_read(steps):
    """Arrays that were handed out stay as they are when rows follow."""
    table, rows, handed_out = Table(a="i8", b="f8", c="?"), [], []
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


def test_a_table_holds_whole_numbers_in_as_few_bytes_as_they_take():
    least = -(2**40)  # which does not count, since all are as far above it
    for span, size in ((0, 0), (2**8 - 1, 1), (2**8, 2), (2**16, 4), (2**32, 8)):
        table = Table(a="i8", b="f8", c="f8")
        table.rows.extend((least + (k % 2) * span, k / 7, 0.5) for k in range(1_000))
        first = table.columns()
        assert table.nbytes == 1_000 * (size + 8)
        table.rows.append((2**62, 0.5, 0.5))  # it does not make others wider
        assert table.columns()["a"].max() == 2**62
        assert table.nbytes == 1_000 * (size + 8)
        assert set(first["a"].tolist()) == {least, least + span}
        assert len(first["a"]) == len(first["c"]) == 1_000


def test_packing_lets_go_of_rows():
    table = Table(a="i8")
    table.rows.extend((k % 100,) for k in range(100_000))
    table.pack()
    assert not table.rows
    assert table.nbytes == 100_000


@examples(40)
@given(codes=st.lists(st.integers(0, 2), max_size=20))
def test_coded_text_is_written_as_plain_text_is(codes, tmp_path_factory):
    names, folder = ("", "fünf", "two words"), tmp_path_factory.mktemp("coded")
    coded = Coded(np.array(codes, dtype=np.int8), names)
    write_parquet({"text": coded}, folder / "coded")
    write_parquet({"text": coded.array()}, folder / "plain")
    assert (folder / "coded").read_bytes() == (folder / "plain").read_bytes()
    assert frame_of({"text": coded})["text"].tolist() == [names[code] for code in codes]


@examples(40)
@given(values=st.lists(st.sampled_from([0.0, 0.1, 1e9, 3.7]), max_size=30))
def test_spent_keeps_the_parts_of_all_requests_and_their_sum_to_the_bit(values):
    by_request = np.array(values)
    spent = Spent.of(by_request, 0.25)
    assert spent.by_request.tobytes() == by_request.tobytes()
    assert spent.total == float(by_request.sum()) + 0.25
    assert len(spent.values) == np.count_nonzero(by_request)
