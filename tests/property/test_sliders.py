"""TaiChi's sliders during a run: few clients change their role, and positions that ask least of
them come first.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mist_sim.core.sliders import Sliders, all_sliders
from mist_sim.reconfiguration import Reconfigurer
from tests.effort import examples

pytestmark = pytest.mark.exact

CHUNKS = (128, 256, 512)


def reconfigurer(roles: list[str], s_p: int, s_d: int) -> Reconfigurer:
    """Return one whose clients have these roles; it is asked what to do, and does nothing."""
    made = Reconfigurer.__new__(Reconfigurer)
    made._clients = [None] * len(roles)  # type: ignore[list-item]
    made._positions = [("p_heavy", s_p) if role == "p" else ("d_heavy", s_d) for role in roles]
    return made


@st.composite
def clusters(draw: st.DrawFn) -> tuple[list[str], Reconfigurer]:
    num_p, num_d = draw(st.integers(1, 5)), draw(st.integers(1, 5))
    roles = draw(st.permutations(["p"] * num_p + ["d"] * num_d))
    s_d, s_p = draw(st.sampled_from([(128, 256), (128, 512), (256, 512)]))
    return roles, reconfigurer(roles, s_p, s_d)


@examples(100)
@given(clusters())
def test_positions_that_change_fewer_roles_come_first(cluster):
    roles, made = cluster
    found = made._choices(CHUNKS)
    assert found[0] == made._sliders()
    changes = [abs(sliders.num_p - roles.count("p")) for sliders in found]
    assert changes == sorted(changes)
    hybrids = {s for s in all_sliders(len(roles), CHUNKS) if s.design == "hybrid"}
    assert len(found) == len(hybrids)
    assert set(found) == hybrids


@examples(100)
@given(clusters(), st.data())
def test_no_more_clients_change_their_role_than_must(cluster, data):
    """The first D-heavy ones become P-heavy, and the last P-heavy ones D-heavy."""
    roles, made = cluster
    num_p = data.draw(st.integers(1, len(roles) - 1))
    wanted = list(made._wanted(Sliders(num_p=num_p, num_d=len(roles) - num_p, s_p=9, s_d=8)))
    now = ["p" if role == "p_heavy" else "d" for role, _ in wanted]
    assert now.count("p") == num_p
    more = num_p > roles.count("p")
    movable = [k for k, role in enumerate(roles) if role == ("d" if more else "p")]
    num_moves = abs(num_p - roles.count("p"))
    expected = movable[:num_moves] if more else movable[len(movable) - num_moves :]
    assert [k for k, role in enumerate(roles) if role != now[k]] == expected
    assert {chunk for role, chunk in wanted if role == "p_heavy"} == {9}
    assert {chunk for role, chunk in wanted if role == "d_heavy"} == {8}
