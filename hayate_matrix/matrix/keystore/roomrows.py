"""The durable projection of rooms: what the bot must know of a room without asking for its whole state again."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hayate_matrix.core.ids import EventId, RoomId, UserId

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hayate_matrix.matrix.keystore.connection import KeyStore


@dataclass(slots=True)
class Room:
    """One room, as the clear state events told it; members are rows of their own."""

    room_id: RoomId
    membership: str = ""
    """The bot's own: `invite`, `join`, `leave`, `ban` or `knock`; empty for a room never heard of."""
    version: str | None = None
    creators: list[str] = field(default_factory=list)
    """Who created it (and `additional_creators` from version 12 on)."""
    power: dict[str, Any] | None = None
    encryption: dict[str, Any] | None = None
    is_encrypted: bool | None = None
    """None: not known; True never goes back (E2E-5)."""
    history_visibility: str | None = None
    is_direct: bool = False
    inviter: UserId | None = None
    name: str | None = None
    canonical_alias: str | None = None
    members_known: bool = False
    joined_event: EventId | None = None
    tombstone: str | None = None
    join_failures: int = 0
    next_join_at_ms: int = 0
    was_banned: bool = False


_COLUMNS = (
    "room_id, membership, version, creators, power, encryption, is_encrypted, history_visibility, is_direct, inviter, name, "
    "canonical_alias, members_known, joined_event, tombstone, join_failures, next_join_at_ms, was_banned"
)


class RoomRows:
    """The rows; every call in the edge's thread, writes in a transaction."""

    def __init__(self, keystore: KeyStore) -> None:
        self._keystore = keystore

    def load(self, room_id: str) -> Room | None:
        """Return the room as it is on disk, or None."""
        row = self._keystore.db.execute(f"select {_COLUMNS} from rooms where room_id = ?", (room_id,)).fetchone()  # noqa: S608 - a literal
        if row is None:
            return None
        return Room(
            room_id=RoomId(row[0]),
            membership=row[1],
            version=row[2],
            creators=json.loads(row[3]),
            power=json.loads(row[4]) if row[4] else None,
            encryption=json.loads(row[5]) if row[5] else None,
            is_encrypted=None if row[6] is None else bool(row[6]),
            history_visibility=row[7],
            is_direct=bool(row[8]),
            inviter=UserId(row[9]) if row[9] else None,
            name=self._keystore.sealer.try_open("room.name", row[0], row[10]) if row[10] is not None else None,
            canonical_alias=row[11],
            members_known=bool(row[12]),
            joined_event=EventId(row[13]) if row[13] else None,
            tombstone=row[14],
            join_failures=row[15],
            next_join_at_ms=row[16],
            was_banned=bool(row[17]),
        )

    def save(self, room: Room) -> None:
        """Write the room; once encrypted it stays so, whatever is written."""
        marks = ", ".join("?" * len(_COLUMNS.split(", ")))
        self._keystore.db.execute(
            f"insert or replace into rooms ({_COLUMNS}) values ({marks})",  # noqa: S608 - literals
            (
                room.room_id,
                room.membership,
                room.version,
                json.dumps(room.creators),
                None if room.power is None else json.dumps(room.power),
                None if room.encryption is None else json.dumps(room.encryption),
                None if room.is_encrypted is None else int(room.is_encrypted),
                room.history_visibility,
                int(room.is_direct),
                room.inviter,
                None if room.name is None else self._keystore.sealer.seal("room.name", room.room_id, room.name),
                room.canonical_alias,
                int(room.members_known),
                room.joined_event,
                room.tombstone,
                room.join_failures,
                room.next_join_at_ms,
                int(room.was_banned),
            ),
        )

    def list_ids(self, membership: str) -> list[RoomId]:
        """Return the ids of rooms where the bot's membership is this."""
        rows = self._keystore.db.execute("select room_id from rooms where membership = ? order by room_id", (membership,))
        return [RoomId(row[0]) for row in rows]

    def set_members(self, room_id: str, members: Iterable[tuple[str, str]]) -> None:
        """Note memberships as (user id, membership)."""
        self._keystore.db.executemany(
            "insert into members (room_id, user_id, membership) values (?, ?, ?) "
            "on conflict (room_id, user_id) do update set membership = excluded.membership",
            [(room_id, user_id, membership) for user_id, membership in members],
        )

    def replace_members(self, room_id: str, members: Iterable[tuple[str, str]]) -> None:
        """Note the whole member list of the room."""
        self._keystore.db.execute("delete from members where room_id = ?", (room_id,))
        self.set_members(room_id, members)

    def read_membership(self, room_id: str, user_id: str) -> str | None:
        """Return the membership of one user, or None where it is not known."""
        row = self._keystore.db.execute("select membership from members where room_id = ? and user_id = ?", (room_id, user_id)).fetchone()
        return None if row is None else str(row[0])

    def list_members(self, room_id: str, memberships: tuple[str, ...] = ("join",)) -> list[UserId]:
        """Return the users of the room with one of these memberships."""
        marks = ", ".join("?" * len(memberships))
        rows = self._keystore.db.execute(
            f"select user_id from members where room_id = ? and membership in ({marks})",  # noqa: S608 - only question marks
            (room_id, *memberships),
        )
        return [UserId(row[0]) for row in rows]

    def count_servers(self, room_id: str, limit: int) -> list[str]:
        """Return the servers with the most joined members, most first."""
        rows = self._keystore.db.execute(
            "select substr(user_id, instr(user_id, ':') + 1) as server from members where room_id = ? and membership = 'join' "
            "group by server order by count(*) desc, server limit ?",
            (room_id, limit),
        )
        return [str(row[0]) for row in rows]

    # -- aliases of the allowlist --------------------------------------------------------------------------------------------

    def read_aliases(self) -> dict[str, tuple[RoomId | None, RoomId | None]]:
        """Return alias → (pinned room, another room that the directory named later)."""
        rows = self._keystore.db.execute("select alias, room_id, other_room_id from aliases")
        return {alias: (RoomId(room) if room else None, RoomId(other) if other else None) for alias, room, other in rows}

    def write_alias(self, alias: str, room_id: str | None, other_room_id: str | None) -> None:
        """Pin an alias to a room, or note that it points elsewhere now."""
        self._keystore.db.execute(
            "insert into aliases (alias, room_id, other_room_id) values (?, ?, ?) "
            "on conflict (alias) do update set room_id = excluded.room_id, other_room_id = excluded.other_room_id",
            (alias, room_id, other_room_id),
        )
