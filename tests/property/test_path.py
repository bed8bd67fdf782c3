"""From the inbox to the room, with the process dying anywhere: a machine of random steps, judged by what the room saw (REL-2)."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

from hayate_matrix.core.ids import RoomId
from hayate_matrix.store.database import open_database
from tests.support.desk import Desk, Killed
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from hayate_matrix.core.facts import AnyFact, Message
    from tests.support.gateway import FakeGateway

ROOMS = [RoomId("!one"), RoomId("!two"), RoomId("!three")]
THREADS = [None, "$root"]
KINDS = ["unsafe", "safe", "echo", "slow", "fail", "crash"]
STEPS = ["intake.accept", "turn.open", "turn.step", "turn.result", "turn.end", "turn.fail", "turn.suspend"]
STEPS += ["command.run", "delivery.settle", "delivery.hold", "delivery.end"]


class Tally:
    """A tool whose effect can be counted: by call id, which is what an idempotent tool looks at."""

    description = "tallies"

    def __init__(self, name: str, *, is_idempotent: bool) -> None:
        self.name = name
        self.is_idempotent = is_idempotent
        self.calls: list[str] = []

    async def run(self, call_id: str, arguments: str) -> str:
        self.calls.append(call_id)
        await asyncio.sleep(0.001)
        return f"tallied {arguments}"


class Life(RuleBasedStateMachine):
    """What people do, what the process does, and what must hold at every moment and at the end."""

    def __init__(self) -> None:
        super().__init__()
        self._folder = tempfile.TemporaryDirectory()
        self._loop = asyncio.new_event_loop()
        shutil.copy(_make_template(), Path(self._folder.name) / "hayate.db")  # a migration for each life would take most of the time
        self.desk = Desk(Path(self._folder.name), is_eager=True, rules={"parallel_turns": 2, "turn_retries": 1000})
        self.safe, self.unsafe = Tally("safe", is_idempotent=True), Tally("unsafe", is_idempotent=False)
        self.desk.tools = [self.safe, self.unsafe]
        self.facts: list[AnyFact] = []
        self.wanted: dict[RoomId, list[str]] = {room: [] for room in ROOMS}
        """Tokens of the requests that must be answered, in order of acceptance, main timeline and thread apart by the token."""
        self.open: list[Message] = []
        self.redacted: set[str] = set()
        self.number = 0

    def run(self, work: Coroutine[object, object, object]) -> bool:
        """Do one thing; where the process dies of it, start the next one. Tells whether it lived."""
        with contextlib.suppress(Killed):
            self._loop.run_until_complete(asyncio.wait_for(work, 60))
        if self.desk.database.is_dead:
            self._loop.run_until_complete(self.desk.crash())
            self._loop.run_until_complete(self.desk.start())
            return False
        return True

    @initialize()
    def begin(self) -> None:
        self._loop.run_until_complete(self.desk.start())

    def hand_over(self, *facts: AnyFact) -> None:
        """Hand facts to the sink until it has taken them, as the edge does."""
        self.facts.extend(facts)
        while not self.run(self.desk.accept(*facts)):
            pass

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

    @precondition(lambda self: self.facts)
    @rule(data=st.data())
    def hand_over_again(self, data: st.DataObject) -> None:
        """The edge repeats facts that were taken."""
        self.hand_over(*data.draw(st.lists(st.sampled_from(self.facts), max_size=5)))

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

    @rule(steps=st.integers(1, 15))
    def let_run(self, steps: int) -> None:
        """Time passes: so many durable steps are taken, if there are as many to take."""

        async def wait() -> None:
            database = self.desk.database
            goal = len(database.names) + steps
            idle = asyncio.ensure_future(self.desk.harness.idle())
            await eventually(lambda: len(database.names) >= goal or idle.done() or database.is_dead, every_s=0.0005)
            idle.cancel()
            await asyncio.gather(idle, return_exceptions=True)

        self.run(wait())

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
        database = self.desk.database
        database.is_behind = is_behind
        if isinstance(doom, int):
            database.countdown = doom
        else:
            database.kill_at = doom
        self.let_run(steps)

    @rule()
    def kill(self) -> None:
        """The process dies now."""
        self._loop.run_until_complete(self.desk.crash())
        self._loop.run_until_complete(self.desk.start())

    @rule()
    def restart(self) -> None:
        """The process is stopped in order and started again."""
        if self.run(self.desk.harness.stop()):
            self.desk.database.close()
            self._loop.run_until_complete(self.desk.start())

    @rule(room=st.sampled_from(ROOMS), is_losing=st.booleans(), is_denied=st.booleans())
    def trouble(self, room: RoomId, *, is_losing: bool, is_denied: bool) -> None:
        """The homeserver's answers get lost, or no more; a room stops or begins being served."""
        self.desk.gateway.is_losing_answers = is_losing
        (self.desk.gateway.denied.add if is_denied else self.desk.gateway.denied.discard)(room)

    def settle(self) -> None:
        """Everything comes to rest: each request that was not removed has one answer, in order; the others have at most one."""
        self.desk.database.countdown = self.desk.database.kill_at = None
        self.desk.gateway.is_losing_answers = False
        self.desk.gateway.denied.clear()
        self.run(self.desk.idle())
        self.kill()  # what was held, or given to the operator, is tried again from here
        self.run(self.desk.idle())
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

    def teardown(self) -> None:
        try:
            if hasattr(self.desk, "database"):
                self.settle()
        finally:
            if hasattr(self.desk, "database"):
                self._loop.run_until_complete(self.desk.crash())
            self._loop.close()
            self._folder.cleanup()


@functools.cache
def _make_template() -> Path:
    path = Path(tempfile.mkdtemp()) / "hayate.db"
    open_database(path).close()
    return path


def _get_token(message: Message) -> str:
    return next(word for word in message.body.replace(".", " ").split() if word[:1] in "mt" and word[1:].isdigit())


@pytest.mark.requirement("REL-2", "CORE-3", "OUT-1", "OUT-2", "IN-1")
def test_every_request_is_answered_once_wherever_the_process_dies() -> None:
    """People ask, repeat and remove; the process dies anywhere, answers get lost, rooms are denied: one answer each, in order."""
    run_state_machine_as_test(
        Life,
        settings=settings(max_examples=40, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)),
    )
