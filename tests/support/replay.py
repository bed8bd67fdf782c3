"""What should have come of people's requests and commands, told from the order of the commits: sessions, tags and answers.

How: a model in plain dictionaries, which shares nothing with the program but the ids of what it made.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hayate_matrix.core.deliveries import Delivery
    from hayate_matrix.core.facts import Message
    from tests.support.journal import Step, Stored

BEHIND = "That comes right after"
PAGE_SIZE = 10
Lane = tuple[str, str]
"""A room and a focus of it."""


@dataclass
class Asked:
    """A message that asks for something, and what became of it in the room."""

    message: Message
    kind: str
    versions: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)
    """The text that comes back, and its tags: first as it was written, then as each edit left it."""
    is_removed: bool = False

    def find_tags(self, version: int) -> tuple[str, ...]:
        """Return what is left of the first version's tags: an edit can only take away."""
        left = set(self.versions[0][1]).intersection(*(tags for _, tags in self.versions[: version + 1]))
        return tuple(sorted(left))


@dataclass
class Command:
    """A command as somebody said it."""

    message: Message
    name: str
    argument: str = ""
    page: int = 1
    is_removed: bool = False


@dataclass
class Lives:
    """What is known of the sessions at one moment."""

    active: dict[Lane, str] = field(default_factory=dict)
    used_at_ms: dict[str, int] = field(default_factory=dict)
    names: dict[str, str | None] = field(default_factory=dict)
    working: dict[Lane, str] = field(default_factory=dict)
    """The session of the turn that is open in a focus."""


class Replay:
    """Goes through a journal and fails where something happened that should not have."""

    def __init__(
        self, requests: dict[str, tuple[Asked, int]], commands: dict[str, Command], answers: dict[str, list[Delivery]], *, idle_ms: int
    ) -> None:
        """`requests` are messages and edits, with the version that each brings; `answers` are what the room saw, by what it answers."""
        self._requests = requests
        self._commands = commands
        self._answers = answers
        self._idle_ms = idle_ms
        self._versions = {event_id: version for event_id, (_, version) in requests.items()}
        self._queues: dict[Lane, list[str]] = {}
        self._queued_at: dict[str, int] = {}
        self._redacted_at: dict[str, int] = {}
        self._sessions = Lives()
        self.pointers: dict[tuple[str, str], list[tuple[int, str]]] = {}
        """The messages that were taken up under a tag of a room, with when that was."""
        self.owed: dict[str, list[str]] = {}
        """Beginnings of the answers to each message, in order."""

    def go(self, stored: Stored, now_ms: int) -> None:
        """Tell the whole journal, and compare with what is stored at its end, which is now."""
        for step in stored.steps:
            self._tell(step, stored)
        assert not self._sessions.working
        assert not any(self._queues.values())
        assert len({(room, focus) for room, focus, _ in stored.active}) == len(stored.active), "two active sessions in a focus"
        for room, focus, session in stored.active:
            assert self._sessions.active.get((room, focus)) == session
        for (room, focus), session in self._sessions.active.items():
            assert (room, focus, session) in stored.active or self._sessions.used_at_ms[session] + self._idle_ms < now_ms
        assert stored.names == self._sessions.names
        expected = [
            (room, tag, ordinal, event_id, "request", 1)
            for (room, tag), found in self.pointers.items()
            for ordinal, (_, event_id) in enumerate(found, 1)
        ]
        assert sorted(tuple(row.values()) for row in stored.index) == sorted(expected)

    def _tell(self, step: Step, stored: Stored) -> None:
        queue = self._queues.setdefault((step.room_id, step.focus), [])
        match step.kind, step.what:
            case _, "redacted":
                self._redacted_at[step.event_id] = step.n
            case _, "edited":
                assert step.event_id in queue, "an edit changed what was taken up"
                self._versions[step.event_id] += 1
            case (("request" | "ordered"), "queued"):
                queue.append(step.event_id)
            case (("request" | "ordered"), "dropped"):
                queue.remove(step.event_id)
            case "request", "running":
                self._open(step, queue)
            case "request", _:
                self._end(step)
            case "ordered", "done":
                assert queue.pop(0) == step.event_id, "a command overtook what was said before it"
                self._change(step, self._commands[step.event_id], self._find_delivery(step).text, stored)
            case _:
                self._tell_lookup(step)

    def _tell_lookup(self, step: Step) -> None:
        command = self._commands[step.event_id]
        match step.what:
            case "queued":
                self._queued_at[step.event_id] = step.n
            case "done":
                self._look(step, command, self._find_delivery(step))
            case _:
                assert command.is_removed, step

    def _open(self, step: Step, queue: list[str]) -> None:
        """A request is taken up: in the session that is active and not idle, else in a fresh one; its tags become pointers."""
        asked, _ = self._requests[step.event_id]
        lane = (step.room_id, step.focus)
        assert queue.pop(0) == step.event_id, "a request overtook what was said before it"
        assert lane not in self._sessions.working, "two turns in a focus"
        assert step.session_id is not None
        assert step.opened_at_ms is not None
        if lane in self._sessions.active and not self._is_idle(lane, step.opened_at_ms):
            assert step.session_id == self._sessions.active[lane], "a request went into another session"
        else:
            self._begin(lane, step.session_id, None)
        self._sessions.used_at_ms[step.session_id] = step.opened_at_ms
        self._sessions.working[lane] = step.session_id
        if step.event_id == asked.message.event_id:
            for tag in asked.find_tags(self._versions[step.event_id]):
                self.pointers.setdefault((step.room_id, tag), []).append((step.n, step.event_id))

    def _end(self, step: Step) -> None:
        """A turn ends; until then its session was in use."""
        asked, _ = self._requests[step.event_id]
        session = self._sessions.working.pop((step.room_id, step.focus))
        assert session == step.session_id
        assert step.ended_at_ms is not None
        self._sessions.used_at_ms[session] = step.ended_at_ms
        if step.what == "stopped":
            assert asked.is_removed
            return
        version = self._versions[step.event_id]
        is_first = step.event_id == asked.message.event_id
        tags = " ".join(f"#{tag}" for tag in asked.find_tags(version)) if is_first else ""
        edited = "" if is_first or asked.kind == "fail" else "Edited: "
        text = f"{tags}{' · ' if tags else ''}{edited}{asked.versions[version][0]}"
        self.owed.setdefault(asked.message.event_id, []).append(text)

    def _change(self, step: Step, command: Command, answer: str, stored: Stored) -> None:
        """A command changes which session is active, as its answer says; what is idle may have been closed by now."""
        lane, at_ms = (step.room_id, step.focus), step.answered_at_ms
        assert at_ms is not None
        assert lane not in self._sessions.working, "a command ran into a turn"
        active = self._sessions.active.get(lane)
        is_vague = active is not None and self._is_idle(lane, at_ms)
        match command.name:
            case "new":
                session = answer.rpartition(" · ")[2]
                assert answer.startswith(f"A fresh session: {command.argument} · ")
                assert stored.rooms[session] == step.room_id
                self._begin(lane, session, command.argument)
                self._sessions.used_at_ms[session] = at_ms
            case "close":
                words = "Closed." if active is not None else "No session is active here."
                assert answer.startswith(words) or is_vague
                self._sessions.active.pop(lane, None)
            case "name":
                is_named = answer == f"This session is called: {command.argument}"
                assert is_named == (active is not None) or is_vague
                assert is_named or answer.startswith("No session is active here")
                if is_named and active is not None:
                    self._sessions.names[active] = command.argument
                else:
                    self._sessions.active.pop(lane, None)
            case _:
                self._resume(step, command.argument, answer, stored)

    def _resume(self, step: Step, session: str, answer: str, stored: Stored) -> None:
        lane = (step.room_id, step.focus)
        if stored.rooms.get(session) != step.room_id:
            assert answer == f"No session `{session}` was found here. `!sessions` lists those of this room."
        elif any(other == session for other in self._sessions.working.values()):
            assert answer.startswith("That session is at work in another thread.")
        else:
            assert answer.startswith("Resumed")
            assert answer.endswith(f" · {session}")
            self._sessions.active = {other: found for other, found in self._sessions.active.items() if found != session}
            self._sessions.active[lane] = session
            assert step.answered_at_ms is not None
            self._sessions.used_at_ms[session] = step.answered_at_ms

    def _look(self, step: Step, command: Command, answer: Delivery) -> None:
        """A lookup shows what was taken up at some moment between when it was asked and when it was answered."""
        since = self._queued_at[step.event_id]
        found = self.pointers.get((step.room_id, command.argument), [])
        if not command.argument:
            tags = {tag: places[0][0] for (room, tag), places in self.pointers.items() if room == step.room_id}
            shown = set(answer.text.split("\n")) if answer.kind == "listing" else set()
            assert {f"#{tag}" for tag, n in tags.items() if n < since} <= shown <= {f"#{tag}" for tag in tags}
            assert answer.kind != "listing" or answer.text.split("\n") == sorted(shown)
            return
        counts = range(sum(n < since for n, _ in found), len(found) + 1)
        pages = [[event_id for _, event_id in found[:count]][::-1][PAGE_SIZE * (command.page - 1) :][:PAGE_SIZE] for count in counts]
        shown_ids = [event_id for _, event_id in answer.links]
        assert shown_ids in pages, f"{command.argument}: {answer.text}"
        lines = answer.text.split("\n")
        for place, event_id in enumerate(shown_ids):
            excerpt = lines[3 * place + 1]
            removed_at = self._redacted_at.get(event_id)
            asked, _ = self._requests[event_id]
            text = asked.versions[self._versions[event_id]][0]
            is_unavailable = excerpt == "  unavailable: message redacted"
            assert is_unavailable or text in excerpt
            assert is_unavailable if removed_at is not None and removed_at < since else removed_at is not None or not is_unavailable

    def _begin(self, lane: Lane, session: str, name: str | None) -> None:
        assert session not in self._sessions.names, "a session that is no longer active was gone on with"
        self._sessions.names[session] = name
        self._sessions.active[lane] = session

    def _is_idle(self, lane: Lane, at_ms: int) -> bool:
        return self._sessions.used_at_ms[self._sessions.active[lane]] + self._idle_ms < at_ms

    def _find_delivery(self, step: Step) -> Delivery:
        found = [delivery for delivery in self._answers.get(step.event_id, []) if not delivery.text.startswith(BEHIND)]
        assert len(found) == 1, f"a command was answered {len(found)} times"
        assert found[0].room_id == step.room_id
        return found[0]
