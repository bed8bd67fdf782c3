"""Rows between a sync response and the harness: intake, gaps, what can't be read yet, what was set aside."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hayate_matrix.core.facts import AnyFact, dump_fact, load_fact
from hayate_matrix.core.ids import EventId, RoomId
from hayate_matrix.log import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from hayate_matrix.matrix.keystore.connection import KeyStore

_log = get_logger(__name__)
RECENT_KEPT = 200
"""Event ids remembered per room, to know where a gap ends: twice the timeline that a sync asks for."""


@dataclass(frozen=True, slots=True)
class SpooledFact:
    """An intake row: its place in the order and the fact."""

    major: int
    minor: int
    fact: AnyFact


@dataclass(frozen=True, slots=True)
class Gap:
    """A stretch of a room's timeline that the sync left out."""

    major: int
    room_id: RoomId
    prev_batch: str
    border: EventId | None
    """An event where filling stops besides the known ones: the bot's own join."""


@dataclass(frozen=True, slots=True)
class Unread:
    """An encrypted event that could not be read, or not be attributed, when it came."""

    event_id: EventId
    room_id: RoomId
    room_key_id: str
    sender: str
    reason: str
    raw: dict[str, Any]
    arrived_at_ms: int


class Spool:
    """The rows; every call in the edge's thread, writes in a transaction."""

    def __init__(self, keystore: KeyStore) -> None:
        self._keystore = keystore
        self._handed: set[tuple[int, int]] = set()
        """Rows that are durable in the harness and on disk here until the next transaction; handing them over again changes nothing."""

    # -- order ---------------------------------------------------------------------------------------------------------------

    def take_major(self) -> int:
        """Return the next place in the order."""
        row = self._keystore.db.execute("update sequence set last = last + 1 where id = 1 returning last").fetchone()
        return int(row[0])

    # -- intake --------------------------------------------------------------------------------------------------------------

    def add_fact(self, fact: AnyFact, *, major: int | None = None, minor: int = 0, passes_gap: bool = False) -> bool:
        """Add `fact` at its place in the order; False where its event id is there already."""
        sealed = self._keystore.sealer.seal("intake.fact", fact.event_id, dump_fact(fact))
        place = major if major is not None else self.take_major()
        cursor = self._keystore.db.execute(
            "insert or ignore into intake (major, minor, event_id, room_id, fact, passes_gap) values (?, ?, ?, ?, ?, ?)",
            (place, minor, fact.event_id, fact.room_id, sealed, passes_gap),
        )
        return cursor.rowcount == 1

    def list_ready(self, limit: int, is_served: Callable[[RoomId], bool]) -> list[SpooledFact]:
        """Return facts that may be handed over, in order: those of a room with an open gap wait behind it unless they pass gaps.

        What came while a room was served that is denied now waits too, but the bot's own comings and goings (ROOM-3).
        """
        rooms = [RoomId(row[0]) for row in self._keystore.db.execute("select distinct room_id from intake")]
        denied = json.dumps([room_id for room_id in rooms if not is_served(room_id)])
        rows = self._keystore.db.execute(
            "select major, minor, event_id, fact from intake as i where (passes_gap = 1 or (not exists "
            "(select 1 from gaps as g where g.room_id = i.room_id and g.major < i.major and g.is_overdue = 0) "
            "and room_id not in (select value from json_each(?)))) order by major, minor limit ?",
            (denied, limit + len(self._handed)),
        ).fetchall()
        ready: list[SpooledFact] = []
        for major, minor, event_id, sealed in rows:
            if (major, minor) in self._handed:
                continue
            text = self._keystore.sealer.try_open("intake.fact", event_id, sealed)
            if text is None:  # damaged: what it said is lost, and it must not stop what came after it
                self._handed.add((major, minor))
                continue
            try:
                fact = load_fact(text)
            except (KeyError, TypeError, ValueError) as error:
                _log.error("a spooled event can't be read by this version and stays where it is", event_id=event_id, error=str(error))
                continue
            ready.append(SpooledFact(major, minor, fact))
        return ready

    def note_handed(self, facts: Iterable[SpooledFact]) -> int:
        """Note facts that are durable in the harness; return how many rows wait for `sweep`. Called from the loop: it adds to a set."""
        self._handed.update((row.major, row.minor) for row in facts)
        return len(self._handed)

    def sweep(self) -> None:
        """Remove the rows of facts that are durable in the harness (in a transaction, which is another's: this is worth no commit)."""
        handed, self._handed = self._handed, set()
        if handed:
            self._keystore.db.executemany("delete from intake where major = ? and minor = ?", list(handed))

    def count_waiting(self) -> int:
        """Return how many facts are not handed over yet."""
        return int(self._keystore.db.execute("select count(*) from intake").fetchone()[0])

    # -- known events --------------------------------------------------------------------------------------------------------

    def is_known(self, room_id: str, event_id: str) -> bool:
        """Whether the event was seen among the last of the room."""
        found = self._keystore.db.execute("select 1 from recent where room_id = ? and event_id = ?", (room_id, event_id)).fetchone()
        return found is not None

    def remember(self, room_id: str, event_ids: Iterable[str]) -> None:
        """Note events as seen and forget the oldest beyond `RECENT_KEPT`."""
        db = self._keystore.db
        db.executemany("insert or ignore into recent (room_id, event_id) values (?, ?)", [(room_id, event_id) for event_id in event_ids])
        db.execute(
            "delete from recent where room_id = ? and seq <= (select seq from recent where room_id = ? order by seq desc limit 1 offset ?)",
            (room_id, room_id, RECENT_KEPT),
        )

    def list_recent(self, *, limit: int) -> list[tuple[RoomId, EventId]]:
        """Return the last seen events of rooms that the bot is in, newest first."""
        rows = self._keystore.db.execute(
            "select e.room_id, e.event_id from recent e join rooms r on r.room_id = e.room_id where r.membership = 'join' "
            "order by e.seq desc limit ?",
            (limit,),
        )
        return [(RoomId(room), EventId(event)) for room, event in rows]

    # -- gaps ----------------------------------------------------------------------------------------------------------------

    def open_gap(self, room_id: str, prev_batch: str, border: str | None) -> int:
        """Note that events are missing before what follows; return its place in the order."""
        major = self.take_major()
        self._keystore.db.execute(
            "insert into gaps (major, room_id, prev_batch, border, opened_at_ms) values (?, ?, ?, ?, ?)",
            (major, room_id, prev_batch, border, self._keystore.now_ms()),
        )
        return major

    def list_gaps(self) -> list[Gap]:
        """Return the open gaps, oldest first."""
        rows = self._keystore.db.execute("select major, room_id, prev_batch, border from gaps order by major")
        return [Gap(major, RoomId(room), prev, EventId(border) if border else None) for major, room, prev, border in rows]

    def close_gap(self, major: int) -> None:
        """Note that the gap is filled."""
        self._keystore.db.execute("delete from gaps where major = ?", (major,))

    def mark_overdue(self, opened_before_ms: int) -> int:
        """Let newer events go on before gaps that stay open too long; return how many rooms that frees."""
        cursor = self._keystore.db.execute("update gaps set is_overdue = 1 where is_overdue = 0 and opened_at_ms < ?", (opened_before_ms,))
        return cursor.rowcount

    def drop_room(self, room_id: str) -> None:
        """Forget gaps and unread events of a room that the bot is no longer in."""
        self._keystore.db.execute("delete from gaps where room_id = ?", (room_id,))
        self._keystore.db.execute("delete from undecryptable where room_id = ?", (room_id,))

    # -- what can't be read yet ----------------------------------------------------------------------------------------------

    def add_unread(self, unread: Unread) -> None:
        """Keep an event that can't be read yet; the same again changes its reason alone."""
        sealed = self._keystore.sealer.seal("undecryptable.raw", unread.event_id, json.dumps(unread.raw, ensure_ascii=False))
        self._keystore.db.execute(
            "insert into undecryptable (event_id, room_id, room_key_id, sender, reason, raw, arrived_at_ms) values (?, ?, ?, ?, ?, ?, ?) "
            "on conflict (event_id) do update set reason = excluded.reason",
            (unread.event_id, unread.room_id, unread.room_key_id, unread.sender, unread.reason, sealed, unread.arrived_at_ms),
        )

    def list_unread(self, *, room_key_id: str | None = None, sender: str | None = None) -> list[Unread]:
        """Return unread events that wait for this room key, or that this sender sent, in order of arrival (in a transaction)."""
        column, value = ("room_key_id", room_key_id) if room_key_id is not None else ("sender", sender)
        rows = self._keystore.db.execute(  # the column is one of two literals
            "select event_id, room_id, room_key_id, sender, reason, raw, arrived_at_ms from undecryptable "  # noqa: S608 - as said
            f"where {column} = ? order by seq",
            (value,),
        ).fetchall()
        found: list[Unread] = []
        for event, room, key, sender_id, reason, raw, at in rows:
            text = self._keystore.sealer.try_open("undecryptable.raw", event, raw)
            if text is None:  # damaged: no key opens it any more
                self.drop_unread(event, room_id=room)
            else:
                found.append(Unread(EventId(event), RoomId(room), key, sender_id, reason, json.loads(text), at))
        return found

    def list_unread_keys(self) -> set[str]:
        """Return the room keys that events wait for."""
        return {row[0] for row in self._keystore.db.execute("select distinct room_key_id from undecryptable where reason = 'no-key'")}

    def list_unread_senders(self) -> set[str]:
        """Return who sent events that can't be read yet for a reason that their device list may end."""
        rows = self._keystore.db.execute("select distinct sender from undecryptable where reason in ('unknown-device', 'unsigned-device')")
        return {row[0] for row in rows}

    def list_unsigned_senders(self) -> list[str]:
        """Return whose messages wait because their owners have not signed the device that they came from."""
        query = "select distinct sender from undecryptable where reason = 'unsigned-device' order by sender limit 100"
        return [row[0] for row in self._keystore.db.execute(query)]

    def drop_unread(self, event_id: str, *, room_id: str) -> None:
        """Forget an unread event that was read, redacted or given up; what another room says of it is nothing."""
        self._keystore.db.execute("delete from undecryptable where event_id = ? and room_id = ?", (event_id, room_id))

    def count_unread(self) -> dict[str, int]:
        """Return how many events wait, by reason."""
        return dict(self._keystore.db.execute("select reason, count(*) from undecryptable group by reason").fetchall())

    def note_withheld(self, room_key_id: str, text: str) -> None:
        """Keep the reason why a sender does not hand over a room key, for the operator."""
        self._keystore.db.execute("update undecryptable set withheld = ? where room_key_id = ?", (text, room_key_id))

    # -- what was set aside --------------------------------------------------------------------------------------------------

    def set_aside(self, kind: str, reason: str, raw: object, *, room_id: str = "", event_id: str = "", sender: str = "") -> None:
        """Quarantine hostile or malformed input and count it (STO-2)."""
        try:
            text = json.dumps(raw, ensure_ascii=False)[:65_536]
        except (TypeError, ValueError, RecursionError):
            text = "(can't be written down)"
        db = self._keystore.db
        row = db.execute(
            "insert into quarantine (kind, room_id, event_id, sender, reason, raw, at_ms) values (?, ?, ?, ?, ?, x'', ?) returning id",
            (kind, room_id, event_id, sender, reason[:300], self._keystore.now_ms()),
        ).fetchone()
        db.execute("update quarantine set raw = ? where id = ?", (self._keystore.sealer.seal("quarantine.raw", str(row[0]), text), row[0]))
        db.execute("delete from quarantine where id <= ?", (int(row[0]) - 10_000,))
        self.count(f"quarantine.{kind}")
        _log.warning("set aside", kind=kind, reason=reason, room=room_id, event_id=event_id, sender=sender)

    def count_set_aside(self) -> int:
        """Return how many pieces of input are in quarantine."""
        return int(self._keystore.db.execute("select count(*) from quarantine").fetchone()[0])

    def count(self, name: str, by: int = 1) -> None:
        """Raise a counter that the operator sees."""
        self._keystore.db.execute(
            "insert into counters (name, value) values (?, ?) on conflict (name) do update set value = value + excluded.value", (name, by)
        )

    def read_counters(self) -> dict[str, int]:
        """Return the counters."""
        return dict(self._keystore.db.execute("select name, value from counters order by name").fetchall())
