"""What every machine of random steps does to a harness: hand facts over, let it run, let it die anywhere, begin again (REL-2)."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from hayate_matrix.core.ids import RoomId
from hayate_matrix.store.database import open_database
from tests.support.desk import Desk, Killed
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from hayate_matrix.core.facts import AnyFact

ROOMS = [RoomId("!one"), RoomId("!two"), RoomId("!three")]
THREADS = [None, "$root"]
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
    """What the process does, and what is done to it; a subclass adds what people do, and judges in `settle`."""

    def __init__(self) -> None:
        super().__init__()
        self._folder = tempfile.TemporaryDirectory()
        self._loop = asyncio.new_event_loop()
        self.path = Path(self._folder.name) / "hayate.db"
        shutil.copy(_make_template(), self.path)  # a migration for each life would take most of the time
        self.desk = Desk(self.path.parent, is_eager=True, rules={"parallel_turns": 2, "turn_retries": 1000})
        self.safe, self.unsafe = Tally("safe", is_idempotent=True), Tally("unsafe", is_idempotent=False)
        self.desk.tools = [self.safe, self.unsafe]
        self.facts: list[AnyFact] = []

    def run(self, work: Coroutine[object, object, object]) -> bool:
        """Do one thing; where the process dies of it, start the next one. Tells whether it lived."""
        with contextlib.suppress(Killed):
            self._loop.run_until_complete(asyncio.wait_for(work, 60))
        if self.desk.database.is_dead:
            self.revive()
            return False
        return True

    def revive(self) -> None:
        """Let the process die now, and start the next one."""
        self._loop.run_until_complete(self.desk.crash())
        self._loop.run_until_complete(self.desk.start())

    def hand_over(self, *facts: AnyFact) -> None:
        """Hand facts to the sink until it has taken them, as the edge does."""
        self.facts.extend(facts)
        while not self.run(self.desk.accept(*facts)):
            pass

    def arm(self, doom: int | str, *, is_behind: bool) -> None:
        """Let the process die at the n-th durable step from here, or when it comes to this one, before or behind its commit."""
        database = self.desk.database
        database.is_behind = is_behind
        if isinstance(doom, int):
            database.countdown = doom
        else:
            database.kill_at = doom

    def rest(self) -> None:
        """Let everything come to rest, with nothing in the way any more."""
        self.desk.database.countdown = self.desk.database.kill_at = None
        self.desk.gateway.is_losing_answers = False
        self.desk.gateway.denied.clear()
        self.run(self.desk.idle())
        self.revive()  # what was held, or given to the operator, is tried again from here
        self.run(self.desk.idle())

    def settle(self) -> None:
        """Let everything come to rest, and judge what the rooms saw."""
        raise NotImplementedError

    @initialize()
    def begin(self) -> None:
        self._loop.run_until_complete(self.desk.start())

    @rule(picks=st.lists(st.integers(0, 99), max_size=5))
    def hand_over_again(self, picks: list[int]) -> None:
        """The edge repeats facts that were taken."""
        if self.facts:
            self.hand_over(*(self.facts[pick % len(self.facts)] for pick in picks))

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

    @rule()
    def kill(self) -> None:
        """The process dies now."""
        self.revive()

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
