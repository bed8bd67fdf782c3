"""From the inbox to the room, with the process dying anywhere: a machine of random steps, judged by what the room saw (REL-2)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule, run_state_machine_as_test

from tests.support.life import ROOMS, STEPS, THREADS, Life

if TYPE_CHECKING:
    from hayate_matrix.core.facts import Message
    from hayate_matrix.core.ids import RoomId
    from tests.support.gateway import FakeGateway

KINDS = ["unsafe", "safe", "echo", "slow", "fail", "crash"]


class Requests(Life):
    """People ask, repeat and remove; what must hold at every moment and at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.wanted: dict[RoomId, list[str]] = {room: [] for room in ROOMS}
        """Tokens of the requests that must be answered, in order of acceptance, main timeline and thread apart by the token."""
        self.open: list[Message] = []
        self.redacted: set[str] = set()
        self.number = 0

    @rule(
        room=st.sampled_from(ROOMS),
        thread=st.sampled_from(THREADS),
        kinds=st.lists(st.sampled_from(KINDS), min_size=1, max_size=4),
    )
    def say(self, room: RoomId, thread: str | None, kinds: list[str]) -> None:
        """People ask for several things at once, in one batch."""
        messages = []
        for kind in kinds:
            self.number += 1
            token = f"{'t' if thread else 'm'}{self.number}"
            body = {
                "echo": f"echo {token}.",
                "slow": f"slow 5 {token}.",
                "fail": f"fail {token}.",
                "crash": f"echo {token}.\ntool nothing",
                "safe": f"echo {token}.\ntool safe {token}",
                "unsafe": f"echo {token}.\ntool unsafe {token}",
            }[kind]
            messages.append(self.desk.message(body, room=room, is_direct=True, thread=thread))
            self.wanted[room].append(token)
        self.open.extend(messages)
        self.hand_over(*messages)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def redact(self, data: st.DataObject) -> None:
        """A message is removed: from then on it may be answered or not, never twice."""
        message = data.draw(st.sampled_from(self.open))
        self.redacted.add(message.event_id)
        self.hand_over(self.desk.redaction(message))

    @rule(room=st.sampled_from(ROOMS))
    def ask_for_help(self, room: RoomId) -> None:
        """A person says `!help`, a command that changes nothing, in the middle of it all."""
        self.hand_over(self.desk.message("!help", room=room, is_direct=True))

    @rule(
        room=st.sampled_from(ROOMS),
        kinds=st.lists(st.sampled_from(KINDS), min_size=1, max_size=3),
        doom=st.integers(1, 8) | st.sampled_from(STEPS),
        is_behind=st.booleans(),
        steps=st.integers(5, 15),
    )
    def doom(self, room: RoomId, kinds: list[str], doom: int | str, steps: int, *, is_behind: bool) -> None:
        """The process dies at the n-th durable step from here, or when it comes to this one, before or behind its commit."""
        self.say(room, None, kinds)
        self.arm(doom, is_behind=is_behind)
        self.let_run(steps)

    def settle(self) -> None:
        """Everything comes to rest: each request that was not removed has one answer, in order; the others have at most one."""
        self.rest()
        gateway: FakeGateway = self.desk.gateway
        for room in ROOMS:
            for focus in ("m", "t"):
                seen = [token for text in gateway.get_texts(room) if (token := text.partition(".")[0])[:1] == focus and token[1:].isdigit()]
                removed = {_get_token(message) for message in self.open if message.event_id in self.redacted}
                assert len(seen) == len(set(seen)), f"answered twice: {seen}"
                wanted = [token for token in self.wanted[room] if token[0] == focus]
                assert [token for token in seen if token not in removed] == [token for token in wanted if token not in removed]
                assert set(seen) <= set(wanted)

    @invariant()
    def nothing_is_done_twice(self) -> None:
        """A delivery is seen once; a tool that is not declared idempotent runs once for a call."""
        ids = [delivery.id for delivery in self.desk.gateway.room]
        assert len(ids) == len(set(ids))
        assert len(self.unsafe.calls) == len(set(self.unsafe.calls))


def _get_token(message: Message) -> str:
    return next(word for word in message.body.replace(".", " ").split() if word[:1] in "mt" and word[1:].isdigit())


@pytest.mark.requirement("REL-2", "CORE-3", "OUT-1", "OUT-2", "IN-1")
def test_every_request_is_answered_once_wherever_the_process_dies() -> None:
    """People ask, repeat and remove; the process dies anywhere, answers get lost, rooms are denied: one answer each, in order."""
    run_state_machine_as_test(
        Requests,
        settings=settings(max_examples=40, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)),
    )
