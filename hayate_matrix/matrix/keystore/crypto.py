"""nio's key store on our connection: the same tables, read when a key is needed instead of all at the start.

Why not nio's own SqliteStore as it is: it answers trust with nine queries a device, loads every room key at start (10 s for 30,000) and
opens a transaction a write. The rows are its own, so a store of nio's is read as it is.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

import vodozemac
from nio.crypto import DeviceStore, InboundGroupSession, OlmAccount, OutgoingKeyRequest, Session
from nio.store import MatrixStore
from peewee import SqliteDatabase

from hayate_matrix.errors import StoreError
from hayate_matrix.log import get_logger

if TYPE_CHECKING:
    from hayate_matrix.matrix.keystore.connection import KeyStore

_log = get_logger(__name__)
_DATE = "%Y-%m-%d %H:%M:%S.%f"
PICKLE_ERRORS = (vodozemac.PickleException, vodozemac.LibolmPickleException, UnicodeDecodeError)
_KEPT_SESSIONS = 5_000
"""Olm sessions and room keys kept in memory; each is 1 to 2 kB, the disk has the rest."""


class CryptoStore(MatrixStore):
    """What `nio.crypto.Olm` asks of a store. Every call is made in the edge's thread."""

    _keystore: KeyStore
    _account_id: int | None = None

    def bind(self, keystore: KeyStore) -> None:
        """Tell which connection the rows go through."""
        self._keystore = keystore

    def _create_database(self) -> SqliteDatabase:
        # secure_delete: a removed key is overwritten. synchronous 2 is FULL: a commit is on the disk when it returns.
        pragmas = {"journal_mode": "wal", "synchronous": 2, "secure_delete": 1, "foreign_keys": 1, "busy_timeout": 5000}
        return SqliteDatabase(self.database_path, pragmas=pragmas, thread_safe=True)

    def load_account(self) -> OlmAccount | None:
        """Return the account of this device, or None before the first start.

        Raises:
            StoreError: the pickle does not open: another sealing key.
        """
        row = self._keystore.db.execute(
            "select id, account, shared from accounts where user_id = ? and device_id = ?", (self.user_id, self.device_id)
        ).fetchone()
        if row is None:
            return None
        self._account_id = int(row[0])
        try:
            return OlmAccount.from_pickle(bytes(row[1]), self.pickle_key, bool(row[2]))
        except PICKLE_ERRORS as error:
            problem = "The device's keys in matrix.db do not open with this sealing key."
            raise StoreError(problem, remedy="Put the store.key back that belongs to this home.") from error

    def save_account(self, account: OlmAccount) -> None:
        """Keep the account as it is now."""
        row = self._keystore.db.execute(
            "insert into accounts (account, user_id, device_id, shared) values (?, ?, ?, ?) "
            "on conflict (user_id, device_id) do update set account = excluded.account, shared = excluded.shared returning id",
            (account.pickle(self.pickle_key), self.user_id, self.device_id, account.shared),
        ).fetchone()
        self._account_id = int(row[0])

    def save_session(self, curve_key: str, session: Session) -> None:
        """Keep an Olm session as it is now."""
        self._keystore.db.execute(
            "insert into olmsessions (creation_time, last_usage_date, sender_key, account_id, session, session_id) "
            "values (?, ?, ?, ?, ?, ?) "
            "on conflict (session_id) do update set session = excluded.session, last_usage_date = excluded.last_usage_date",
            (
                session.creation_time.strftime(_DATE),
                session.use_time.strftime(_DATE),
                curve_key,
                self._account_id,
                session.pickle(self.pickle_key),
                session.id,
            ),
        )

    def load_sessions(self) -> OlmSessions:
        """Return the Olm sessions, read from disk device by device."""
        return OlmSessions(self)

    def read_sessions(self, curve_key: str) -> list[Session]:
        """Return the Olm sessions with the device of `curve_key`, last used first; one that does not open is left out."""
        found: list[Session] = []
        rows = self._keystore.db.execute(
            "select session, creation_time, last_usage_date, session_id from olmsessions where sender_key = ? "
            "order by last_usage_date desc",
            (curve_key,),
        )
        for pickle, created, used, session_id in rows:
            try:
                session = Session.from_pickle(bytes(pickle), _read_date(created), self.pickle_key, _read_date(used))
            except PICKLE_ERRORS:
                _log.warning("an Olm session does not open and is left out", session=session_id)
                continue
            found.append(session)
        return found

    def save_inbound_group_session(self, session: InboundGroupSession) -> None:
        """Keep a room key; an older index that is already there stays (a key that begins later can't read what came before)."""
        self._keystore.db.execute(
            "insert into megolminboundsessions (sender_key, account_id, fp_key, room_id, session, session_id) values (?, ?, ?, ?, ?, ?) "
            "on conflict (session_id) do update set session = excluded.session",
            (session.sender_key, self._account_id, session.ed25519, session.room_id, session.pickle(self.pickle_key), session.id),
        )
        for chain in session.forwarding_chain:
            self._keystore.db.execute("insert or ignore into forwardedchains (sender_key, session_id) values (?, ?)", (chain, session.id))

    def load_inbound_group_sessions(self) -> RoomKeys:
        """Return the room keys, read from disk one by one."""
        return RoomKeys(self)

    def read_room_key(self, session_id: str) -> InboundGroupSession | None:
        """Return the room key, or None: unknown, or damaged (which is logged and left alone)."""
        db = self._keystore.db
        row = db.execute(
            "select session, fp_key, sender_key, room_id from megolminboundsessions where session_id = ?", (session_id,)
        ).fetchone()
        if row is None:
            return None
        chain = [r[0] for r in db.execute("select sender_key from forwardedchains where session_id = ?", (session_id,))]
        try:
            return InboundGroupSession.from_pickle(bytes(row[0]), row[1], row[2], row[3], self.pickle_key, chain)
        except PICKLE_ERRORS:
            _log.warning("a room key does not open and is set aside", room_key=session_id)
            return None

    def load_device_keys(self) -> DeviceStore:
        """Return an empty container: devices are rows of `Trust`."""
        return DeviceStore()

    def load_outgoing_key_requests(self) -> dict[str, OutgoingKeyRequest]:
        """Return none: forwarded keys are not asked for (they would open messages that may not be obeyed)."""
        return {}


class OlmSessions:
    """The Olm sessions by the other device's curve25519 key; a cache over the rows."""

    def __init__(self, store: CryptoStore) -> None:
        self._store = store
        self._known: dict[str, list[Session]] = {}

    def __getitem__(self, curve_key: str) -> list[Session]:
        if curve_key not in self._known:
            if len(self._known) >= _KEPT_SESSIONS:
                self._known.clear()
            self._known[curve_key] = self._store.read_sessions(curve_key)
        return self._known[curve_key]

    def get(self, curve_key: str) -> Session | None:
        """Return the session that was used last, or None."""
        sessions = self[curve_key]
        return max(sessions, key=lambda session: session.use_time) if sessions else None

    def add(self, curve_key: str, session: Session) -> bool:
        """Add a new session; the caller saves it."""
        self[curve_key].insert(0, session)
        return True


class RoomKeys:
    """The room keys by id; a cache over the rows."""

    def __init__(self, store: CryptoStore) -> None:
        self._store = store
        self._known: dict[str, InboundGroupSession] = {}

    def find(self, room_id: str, session_id: str) -> InboundGroupSession | None:
        """Return the key with this id if it is a key of this room."""
        session = self._known.get(session_id)
        if session is None:
            session = self._store.read_room_key(session_id)
            if session is None:
                return None
            self._remember(session)
        return session if session.room_id == room_id else None

    def get(self, room_id: str, _sender_key: str, session_id: str) -> InboundGroupSession | None:
        """Return the key as nio asks for it; the sender key of an event is only a claim and decides nothing."""
        return self.find(room_id, session_id)

    def add(self, session: InboundGroupSession) -> bool:
        """Add a key; False where the one that is there begins as early or belongs to another device or room."""
        known = self._known.get(session.id) or self._store.read_room_key(session.id)
        if known is not None:
            is_same = (known.room_id, known.sender_key, known.ed25519) == (session.room_id, session.sender_key, session.ed25519)
            if not is_same or known.first_known_index <= session.first_known_index:
                return False
        self._remember(session)
        return True

    def _remember(self, session: InboundGroupSession) -> None:
        if len(self._known) >= _KEPT_SESSIONS:
            self._known.clear()
        self._known[session.id] = session


def _read_date(text: Any) -> datetime:
    try:
        return datetime.strptime(str(text), _DATE)  # noqa: DTZ007 - nio keeps local times; they only order sessions
    except ValueError:
        return datetime.strptime(str(text), "%Y-%m-%d %H:%M:%S")  # noqa: DTZ007 - as above
