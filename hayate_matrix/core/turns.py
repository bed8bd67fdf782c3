"""The states of requests, tasks, sessions and deliveries, and the moves between them that are legal.

Invariant: a state changes only along these tables, by an update guarded by the state and epoch that were read (STO-4); the store
refuses the rest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

RequestState = Literal["noted", "queued", "running", "done", "failed", "stopped", "dropped"]
TaskState = Literal["running", "suspended", "done", "failed", "stopped"]
SessionState = Literal["active", "closed", "removed"]
DeliveryState = Literal["pending", "held", "sent", "refused", "uncertain"]

Moves = dict[str, frozenset[str]]

INBOX_MOVES: Moves = {
    "noted": frozenset(),  # a fact that asks for no work; the row is there so that it is taken once
    "queued": frozenset({"running", "done", "failed", "dropped"}),  # straight to done or failed: a command, which is one step
    "running": frozenset({"done", "failed", "stopped"}),
    "done": frozenset(),
    "failed": frozenset(),
    "stopped": frozenset(),
    "dropped": frozenset(),
}
TASK_MOVES: Moves = {
    "running": frozenset({"running", "suspended", "done", "failed", "stopped"}),  # to itself: taken up again after a crash
    "suspended": frozenset({"running", "failed", "stopped"}),  # the program ended in order, which is no try
    "done": frozenset(),
    "failed": frozenset(),
    "stopped": frozenset(),
}
SESSION_MOVES: Moves = {
    "active": frozenset({"active", "closed", "removed"}),  # to itself: taken over by another thread of the room
    "closed": frozenset({"active", "removed"}),
    "removed": frozenset(),  # retention took its text; the row stays, so that pointers can say so
}
OUTBOX_MOVES: Moves = {
    "pending": frozenset({"sent", "held", "refused", "uncertain"}),
    "held": frozenset({"pending", "sent", "refused", "uncertain"}),
    "sent": frozenset(),
    "refused": frozenset(),
    "uncertain": frozenset({"pending"}),  # the operator's decision
}
MOVES: Mapping[str, Moves] = {"inbox": INBOX_MOVES, "tasks": TASK_MOVES, "sessions": SESSION_MOVES, "outbox": OUTBOX_MOVES}
"""The tables by the durable thing that they are about."""


def is_legal(thing: str, state: str, to: str) -> bool:
    """Tell whether `thing` may go from `state` to `to`."""
    return to in MOVES[thing].get(state, frozenset())
