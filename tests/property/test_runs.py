"""Blocks joined to runs: what two requests share stays the same, in fewer spans."""

from hypothesis import given
from hypothesis import strategies as st

from mist_sim.core.content_ids import OF_BLOCK, Runs, spans_of

SIZE = 16
PATHS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=8), min_size=1, max_size=12)


def shared(one, other):
    """Tokens that two contents begin with, by the rule of `core.request.Content`."""
    tokens = 0
    for (first, length), (second, also) in zip(one, other, strict=False):
        if first != second:
            break
        tokens += min(length, also)
        if length != also:
            break
    return tokens


@given(PATHS, st.integers(1, SIZE))
def test_what_requests_share_stays(paths, rest):
    ids, contents = {}, []
    for path in paths:
        numbers = [ids.setdefault(tuple(path[: n + 1]), len(ids)) for n in range(len(path))]
        spans = spans_of(OF_BLOCK, numbers, SIZE)
        spans[-1] = (spans[-1][0], SIZE if path[-1] else rest)
        contents.append(tuple(spans))
    runs = Runs()
    joined = [runs.joined(content) for content in contents]
    for content, found in zip(contents, joined, strict=True):
        assert sum(length for _, length in found) == sum(length for _, length in content)
        assert len(found) <= len(content)
        for other, also in zip(contents, joined, strict=True):
            assert shared(found, also) == shared(content, other)


def test_a_growing_conversation_is_one_span():
    runs = Runs()
    found = [runs.joined(tuple(spans_of(OF_BLOCK, range(n), SIZE))) for n in (3, 5, 9)]
    assert [[length for _, length in each] for each in found] == [[48], [80], [144]]
    assert len({each[0][0] for each in found}) == 1


def test_other_contents_stay():
    assert Runs().joined(((1, 5), (9, 7))) == ((1, 5), (9, 7))
