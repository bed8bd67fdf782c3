"""Other people's devices: their keys, who signed them, and who holds which room key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hayate_matrix.core.ids import DeviceId, UserId

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from hayate_matrix.matrix.keystore.connection import KeyStore


@dataclass(frozen=True, slots=True)
class Device:
    """A device as its owner's homeserver published it, its self-signature checked."""

    user_id: UserId
    device_id: DeviceId
    ed25519: str
    curve25519: str
    is_deleted: bool = False
    is_signed: bool = False
    """Signed by the self-signing key of its owner's identity."""
    is_blacklisted: bool = False
    next_claim_at_ms: int = 0


@dataclass(frozen=True, slots=True)
class Identity:
    """A user's public cross-signing keys."""

    user_id: UserId
    master: str | None
    self_signing: str | None
    verified_master: str | None
    """The master key that the operator verified, if any; another one now means that the user gets no keys."""

    @property
    def is_changed(self) -> bool:
        """Whether the identity is another one than the operator verified."""
        return self.verified_master is not None and self.verified_master != self.master


_DEVICE = "user_id, device_id, ed25519, curve25519, is_deleted, is_signed, is_blacklisted, next_claim_at_ms"


class Trust:
    """The rows; every call in the edge's thread, writes in a transaction."""

    def __init__(self, keystore: KeyStore) -> None:
        self._keystore = keystore

    # -- who must be asked for -----------------------------------------------------------------------------------------------

    def track(self, user_ids: Iterable[str]) -> None:
        """Follow the device lists of these users; one that is new is asked for."""
        self._keystore.db.executemany("insert or ignore into users (user_id) values (?)", [(user_id,) for user_id in user_ids])

    def mark_changed(self, user_ids: Iterable[str]) -> None:
        """Note that device lists changed; an answer that was asked for before does not settle it."""
        self._keystore.db.executemany(
            "update users set is_outdated = 1, change = change + 1, next_query_at_ms = 0 where user_id = ?",
            [(user_id,) for user_id in user_ids],
        )

    def untrack(self, user_ids: Iterable[str]) -> None:
        """Stop following users with whom no room is shared any more; what is known of their devices stays, out of date."""
        self._keystore.db.executemany(
            "update users set is_outdated = 1, change = change + 1 where user_id = ?", [(user_id,) for user_id in user_ids]
        )

    def list_outdated(self, *, among: Iterable[str] | None = None, now_ms: int | None = None) -> list[tuple[UserId, int]]:
        """Return (user, change) of users whose devices must be asked for; `now_ms` leaves out those that wait after a failure."""
        query = "select user_id, change from users where is_outdated = 1"
        values: list[object] = []
        if now_ms is not None:
            query += " and next_query_at_ms <= ?"
            values.append(now_ms)
        rows = self._keystore.db.execute(query + " order by user_id", values)
        wanted = None if among is None else set(among)
        return [(UserId(user), int(change)) for user, change in rows if wanted is None or user in wanted]

    def has_due(self) -> bool:
        """Whether some user's devices must be asked for now."""
        row = self._keystore.db.execute(
            "select 1 from users where is_outdated = 1 and next_query_at_ms <= ? limit 1", (self._keystore.now_ms(),)
        ).fetchone()
        return row is not None

    def settle_query(self, user_id: str, change: int) -> None:
        """Note an answer; it settles the user only if nothing changed since it was asked for."""
        self._keystore.db.execute(
            "update users set is_outdated = 0, failures = 0, next_query_at_ms = 0 where user_id = ? and change = ?", (user_id, change)
        )

    def postpone_query(self, user_id: str, pauses_ms: tuple[int, ...]) -> None:
        """Note that the user's server did not answer; the next try waits longer each time."""
        row = self._keystore.db.execute("select failures from users where user_id = ?", (user_id,)).fetchone()
        if row is not None:
            pause = pauses_ms[min(int(row[0]), len(pauses_ms) - 1)]
            self._keystore.db.execute(
                "update users set failures = failures + 1, next_query_at_ms = ? where user_id = ?",
                (self._keystore.now_ms() + pause, user_id),
            )

    # -- identities ----------------------------------------------------------------------------------------------------------

    def read_identity(self, user_id: str) -> Identity:
        """Return the user's identity; its keys are None where none is known."""
        row = self._keystore.db.execute("select master, self_signing, verified_master from users where user_id = ?", (user_id,)).fetchone()
        return Identity(UserId(user_id), *(row or (None, None, None)))

    def write_identity(self, user_id: str, master: str | None, self_signing: str | None) -> None:
        """Note the identity that the server shows now."""
        self._keystore.db.execute("update users set master = ?, self_signing = ? where user_id = ?", (master, self_signing, user_id))

    def write_verified(self, user_id: str, master: str | None) -> None:
        """Note which master key the operator verified."""
        self._keystore.db.execute("update users set verified_master = ? where user_id = ?", (master, user_id))

    # -- devices -------------------------------------------------------------------------------------------------------------

    def list_devices(self, user_id: str, *, with_deleted: bool = False) -> list[Device]:
        """Return the user's devices."""
        deleted = "" if with_deleted else " and is_deleted = 0"
        rows = self._keystore.db.execute(f"select {_DEVICE} from devices where user_id = ?{deleted}", (user_id,))  # noqa: S608 - literals
        return [_read_device(row) for row in rows]

    def find_device(self, user_id: str, *, curve25519: str) -> Device | None:
        """Return the user's device with this identity key, also one that was removed since."""
        row = self._keystore.db.execute(
            f"select {_DEVICE} from devices where curve25519 = ? and user_id = ? order by is_deleted",  # noqa: S608 - a literal
            (curve25519, user_id),
        ).fetchone()
        return None if row is None else _read_device(row)

    def save_device(self, device: Device) -> None:
        """Write a device; whether it is blacklisted is not changed."""
        self._keystore.db.execute(
            "insert into devices (user_id, device_id, ed25519, curve25519, is_deleted, is_signed) values (?, ?, ?, ?, ?, ?) "
            "on conflict (user_id, device_id) do update set ed25519 = excluded.ed25519, curve25519 = excluded.curve25519, "
            "is_deleted = excluded.is_deleted, is_signed = excluded.is_signed",
            (device.user_id, device.device_id, device.ed25519, device.curve25519, device.is_deleted, device.is_signed),
        )

    def postpone_claim(self, user_id: str, device_id: str, pauses_ms: tuple[int, ...]) -> None:
        """Note that no one-time key was to be had for the device; the next claim waits longer each time."""
        row = self._keystore.db.execute(
            "select claim_failures from devices where user_id = ? and device_id = ?", (user_id, device_id)
        ).fetchone()
        if row is not None:
            pause = pauses_ms[min(int(row[0]), len(pauses_ms) - 1)]
            self._keystore.db.execute(
                "update devices set claim_failures = claim_failures + 1, next_claim_at_ms = ? where user_id = ? and device_id = ?",
                (self._keystore.now_ms() + pause, user_id, device_id),
            )

    def settle_claim(self, user_id: str, device_id: str) -> None:
        """Note that the device answered with a one-time key."""
        self._keystore.db.execute(
            "update devices set claim_failures = 0, next_claim_at_ms = 0 where user_id = ? and device_id = ?", (user_id, device_id)
        )

    def list_audience(self, room_id: str, memberships: tuple[str, ...], now_ms: int) -> Iterator[tuple[UserId, bool, bool, Device | None]]:
        """Yield (user, must be asked for now, identity is changed, device or None) for the members of a room, in one query."""
        marks = ", ".join("?" * len(memberships))
        rows = self._keystore.db.execute(
            "select m.user_id, coalesce(u.is_outdated, 1), coalesce(u.next_query_at_ms, 0), u.master, u.verified_master, "  # noqa: S608
            "d.device_id, d.ed25519, d.curve25519, d.is_deleted, d.is_signed, d.is_blacklisted, d.next_claim_at_ms from members m "
            "left join users u on u.user_id = m.user_id left join devices d on d.user_id = m.user_id and d.is_deleted = 0 "
            f"where m.room_id = ? and m.membership in ({marks})",
            (room_id, *memberships),
        )
        for user, outdated, next_at, master, verified, *device in rows:
            is_changed = verified is not None and verified != master
            found = None if device[0] is None else _read_device((user, *device))
            yield UserId(user), bool(outdated) and next_at <= now_ms, is_changed, found

    # -- who holds which room key --------------------------------------------------------------------------------------------

    def read_shares(self, room_key_id: str) -> dict[tuple[str, str], tuple[str, str]]:
        """Return (user, device) → (curve25519, state) of a room key; state is `sent`, or `withheld`."""
        rows = self._keystore.db.execute("select user_id, device_id, curve25519, state from shares where room_key_id = ?", (room_key_id,))
        return {(user, device): (curve, state) for user, device, curve, state in rows}

    def add_shares(self, room_key_id: str, devices: Iterable[Device], state: str) -> None:
        """Note that the room key is on its way to these devices, or that they were told that it is withheld."""
        self._keystore.db.executemany(
            "insert or replace into shares (room_key_id, user_id, device_id, curve25519, state) values (?, ?, ?, ?, ?)",
            [(room_key_id, device.user_id, device.device_id, device.curve25519, state) for device in devices],
        )

    def count_refused(self) -> int:
        """Return how many devices are told that they get no keys."""
        row = self._keystore.db.execute(
            "select count(distinct s.user_id || ' ' || s.device_id) from shares s join devices d "
            "on d.user_id = s.user_id and d.device_id = s.device_id where s.state = 'withheld' and d.is_deleted = 0 and d.is_signed = 0"
        ).fetchone()
        return int(row[0])

    def drop_shares(self, room_key_id: str) -> None:
        """Forget who held a room key that is no longer used."""
        self._keystore.db.execute("delete from shares where room_key_id = ?", (room_key_id,))

    def note_index(self, room_key_id: str, message_index: int, event_id: str) -> bool:
        """Note which event used this index of a room key; False where another event did (a replay)."""
        db = self._keystore.db
        db.execute(
            "insert or ignore into message_index (room_key_id, message_index, event_id) values (?, ?, ?)",
            (room_key_id, message_index, event_id),
        )
        row = db.execute(
            "select event_id from message_index where room_key_id = ? and message_index = ?", (room_key_id, message_index)
        ).fetchone()
        return bool(row[0] == event_id)


def _read_device(row: tuple[str, str, str, str, int, int, int, int]) -> Device:
    return Device(UserId(row[0]), DeviceId(row[1]), row[2], row[3], bool(row[4]), bool(row[5]), bool(row[6]), row[7])
