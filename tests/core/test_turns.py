"""The tables of legal moves."""

from __future__ import annotations

import pytest

from hayate_matrix.core.turns import MOVES, is_legal


@pytest.mark.requirement("STO-4")
@pytest.mark.parametrize("thing", sorted(MOVES))
def test_every_move_leads_to_a_state_of_the_table(thing: str) -> None:
    """No move ends in a state that the table does not know."""
    assert all(to in MOVES[thing] for targets in MOVES[thing].values() for to in targets)


@pytest.mark.requirement("STO-4", "OUT-1")
@pytest.mark.parametrize(
    ("thing", "state"),
    [("inbox", "done"), ("inbox", "dropped"), ("tasks", "done"), ("tasks", "failed"), ("outbox", "sent"), ("outbox", "refused")],
)
def test_what_is_over_stays_over(thing: str, state: str) -> None:
    """No move leads out of an end."""
    assert not any(is_legal(thing, state, to) for to in MOVES[thing])
