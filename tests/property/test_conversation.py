"""A conversation with tags, sessions and idle days, with the process dying anywhere: judged by a model of the order of commits (REL-2)."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule, run_state_machine_as_test

from tests.support.journal import Stored, list_sessions, make_journal
from tests.support.life import ROOMS, STEPS, THREADS, Life
from tests.support.replay import Asked, Command, Replay

if TYPE_CHECKING:
    from hayate_matrix.core.deliveries import Delivery
    from hayate_matrix.core.facts import AnyFact, Edit
    from hayate_matrix.core.ids import RoomId

KINDS = ["echo", "slow", "fail", "safe", "unsafe"]
TAGS = ["ape", "bee", "cat-2"]
NEVER = "01a1989a-ef9c-7019-b7d8-d2f4f3206481"
"""The id of a session that never was."""

rooms = st.sampled_from(ROOMS[:2])
threads = st.sampled_from(THREADS)
some_tags = st.lists(st.sampled_from(TAGS), max_size=3, unique=True)
picks = st.integers(0, 99)


class Conversation(Life):
    """People tag, edit, remove, look up, and change sessions; days pass."""

    def __init__(self) -> None:
        super().__init__()
        make_journal(self.path)
        self.asked: list[Asked] = []
        self.requests: dict[str, tuple[Asked, int]] = {}
        self.commands: dict[str, Command] = {}
        self.numbers = itertools.count(1)

    def change(self, asked: Asked, tags: list[str]) -> Edit:
        """Return an edit of a message, which brings its next version."""
        body = self.write(asked, tags)
        edit = self.desk.edit(asked.message, body)
        self.requests[edit.event_id] = (asked, len(asked.versions) - 1)
        return edit

    def write(self, asked: Asked, tags: list[str]) -> str:
        """Return the body of a message's next version."""
        line = f"words {next(self.numbers)}." + "".join(f" #{tag}" for tag in tags)
        asked.versions.append((line, tuple(tags)))
        verb = {"slow": "slow 5", "fail": "fail"}.get(asked.kind, "echo")
        return f"{verb} {line}" + (f"\ntool {asked.kind} it" if asked.kind in {"safe", "unsafe"} else "")

    @rule(
        room=rooms,
        thread=threads,
        wishes=st.lists(st.tuples(st.sampled_from(KINDS), some_tags, st.none() | some_tags), min_size=1, max_size=3),
        early=st.booleans(),
    )
    def say(self, room: RoomId, thread: str | None, wishes: list[tuple[str, list[str], list[str] | None]], *, early: bool) -> None:
        """People ask for several things in one batch, and edit some of them at once; sync may bring the edit before its message."""
        facts: list[AnyFact] = []
        for kind, tags, changed in wishes:
            asked = Asked(self.desk.message("", room=room, is_direct=True, thread=thread), kind)
            asked.message = self.desk.message(self.write(asked, tags), room=room, is_direct=True, thread=thread)
            edits = [] if changed is None else [self.change(asked, changed)]
            self.requests[asked.message.event_id] = (asked, len(edits) if early else 0)
            self.asked.append(asked)
            facts += [*edits, asked.message] if early else [asked.message, *edits]
        self.hand_over(*facts)

    @precondition(lambda self: self.asked)
    @rule(pick=st.integers(0, 4), tags=some_tags)
    def edit(self, pick: int, tags: list[str]) -> None:
        """One of the last messages is edited, wherever it is on its way."""
        asked = self.asked[-1 - pick % len(self.asked)]
        if not asked.is_removed:
            self.hand_over(self.change(asked, tags))

    @precondition(lambda self: self.asked)
    @rule(pick=st.integers(0, 4))
    def redact(self, pick: int) -> None:
        """One of the last messages is removed."""
        asked = self.asked[-1 - pick % len(self.asked)]
        asked.is_removed = True
        self.hand_over(self.desk.redaction(asked.message))

    def command(self, name: str, room: RoomId, thread: str | None, argument: str = "", page: int = 1) -> None:
        """Somebody says a command."""
        words = f"#{argument} {page}" if name == "hashtags" and argument else argument
        message = self.desk.message(f"!{name} {words}".strip(), room=room, is_direct=True, thread=thread)
        self.commands[message.event_id] = Command(message, name, argument, page)
        self.hand_over(message)

    @rule(name=st.sampled_from(["new", "new", "close", "name"]), room=rooms, thread=threads)
    def change_session(self, name: str, room: RoomId, thread: str | None) -> None:
        """A command that waits for what was said before it."""
        self.command(name, room, thread, "" if name == "close" else f"name {next(self.numbers)}")

    @rule(room=rooms, thread=threads, pick=picks)
    def resume(self, room: RoomId, thread: str | None, pick: int) -> None:
        """Any session of any room is asked for, or one that never was."""
        known = [NEVER, *list_sessions(self.path)]
        self.command("resume", room, thread, known[pick % len(known)])

    @rule(room=rooms, thread=threads, tag=st.sampled_from(["", *TAGS]))
    def look_up(self, room: RoomId, thread: str | None, tag: str) -> None:
        """A lookup in the middle of it all."""
        self.command("hashtags", room, thread, tag)

    @precondition(lambda self: self.commands)
    @rule(pick=st.integers(0, 2))
    def take_back(self, pick: int) -> None:
        """One of the last commands is removed: it is run before that, or never."""
        command = list(self.commands.values())[-1 - pick % len(self.commands)]
        command.is_removed = True
        self.hand_over(self.desk.redaction(command.message))

    @rule(is_down=st.booleans())
    def pass_days(self, *, is_down: bool) -> None:
        """Nobody says anything for longer than a session stays open; the program may be down meanwhile."""
        if is_down:
            self._loop.run_until_complete(self.desk.crash())
        self.desk.clock.jump(2 * self.desk.rules.idle_s)
        if is_down:
            self._loop.run_until_complete(self.desk.start())

    @rule(doom=st.integers(1, 12) | st.sampled_from([*STEPS, "sessions.close_idle"]), is_behind=st.booleans())
    def doom(self, doom: int | str, *, is_behind: bool) -> None:
        """The process will die at the n-th durable step from here, or when it comes to this one, before or behind its commit."""
        self.arm(doom, is_behind=is_behind)

    @rule()
    def pause_and_judge(self) -> None:
        """Everything comes to rest in the middle of a life."""
        self.settle()

    def settle(self) -> None:
        """Everything comes to rest, each tag is looked up in each room, and the model tells what must have come of it."""
        self.rest()
        for room in ROOMS:
            for tag in ["", *TAGS]:
                for page in (1, 2) if tag else (1,):
                    self.command("hashtags", room, None, tag, page)
        self.run(self.desk.idle())
        answers: dict[str, list[Delivery]] = {}
        for delivery in self.desk.gateway.room:
            assert delivery.request is not None
            answers.setdefault(delivery.request, []).append(delivery)
        stored = Stored(self.path, self.desk.sealer)
        replay = Replay(self.requests, self.commands, answers, idle_ms=int(self.desk.rules.idle_s * 1000))
        replay.go(stored, int(self.desk.clock.now().timestamp() * 1000))
        for asked in self.asked:
            seen = answers.get(asked.message.event_id, [])
            owed = replay.owed.get(asked.message.event_id, [])
            assert all(delivery.room_id == asked.message.room_id for delivery in seen)
            assert [delivery.text.partition(" (error")[0] for delivery in seen] == owed
            assert asked.is_removed or owed[-1].endswith(asked.versions[-1][0]), "the newest version was not answered"
        assert not any(text.startswith("#") for text in stored.replies), "a label was stored"

    @invariant()
    def nothing_is_done_twice(self) -> None:
        """A delivery is seen once; a tool that is not declared idempotent runs once for a call."""
        ids = [delivery.id for delivery in self.desk.gateway.room]
        assert len(ids) == len(set(ids))
        assert len(self.unsafe.calls) == len(set(self.unsafe.calls))


@pytest.mark.requirement("REL-2", "IDX-1", "IDX-2", "IDX-4", "IDX-7", "LBL-1", "SES-2", "SES-3", "CMD-3", "SRC-1", "IN-4")
def test_tags_and_sessions_are_what_was_said_wherever_the_process_dies() -> None:
    """People tag, edit, remove, look up, change sessions and stay away for days: each thing once, under its tags, in its session."""
    # A failing life is shown as it was: making it smaller takes minutes, since every step is a real one.
    phases = [Phase.explicit, Phase.reuse, Phase.generate]
    run_state_machine_as_test(
        Conversation,
        settings=settings(max_examples=40, stateful_step_count=20, phases=phases, deadline=None, suppress_health_check=list(HealthCheck)),
    )
