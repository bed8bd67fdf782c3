"""The harness's durable things, side by side, as its parts are handed them; and all their sealed texts at once (STO-8)."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import sqlalchemy as sa

from hayate_matrix.errors import WaitError
from hayate_matrix.log import get_logger
from hayate_matrix.store.inbox import Inbox
from hayate_matrix.store.outbox import Outbox
from hayate_matrix.store.schema import KEY_ID, READ_KEY_ID, entries, inbox, meta, outbox, sessions
from hayate_matrix.store.sessions import Sessions
from hayate_matrix.store.spending import Spending
from hayate_matrix.store.tags import Tags
from hayate_matrix.store.tasks import Tasks

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from sqlalchemy import Connection

    from hayate_matrix.core.clock import Clock
    from hayate_matrix.store.database import Database
    from hayate_matrix.store.sealing import Sealer

T = TypeVar("T")
_log = get_logger(__name__)

_SEALED = (
    (inbox, "event_id", "content", "inbox.content"),
    (entries, "id", "content", "entries.content"),
    (sessions, "id", "name", "sessions.name"),
    (outbox, "id", "text", "outbox.text"),
)
"""Each sealed column with the id and the logical field that are bound into it."""


_WAIT_S = 5.0
"""Between two tries of a commit while the disk is full."""


async def keep(clock: Clock, commit: Callable[[], Awaitable[T]]) -> T:
    """Commit, however long the disk stays full: what is asked for is not lost, it waits."""
    while True:
        try:
            return await commit()
        except WaitError as error:
            _log.warning("a commit waits", reason=error.code)
            await clock.sleep(_WAIT_S)


class Stores:
    """One database and what is kept in it."""

    def __init__(self, database: Database, sealer: Sealer) -> None:
        self.database = database
        self.inbox = Inbox(sealer)
        self.sessions = Sessions(sealer)
        self.tasks = Tasks()
        self.outbox = Outbox(sealer)
        self.tags = Tags()
        self.removals = 0
        """How often retention took texts while this process runs: what was read before may show what is gone."""
        self.spending = Spending()


def reseal(connection: Connection, old: Sealer, new: Sealer) -> int:
    """Seal every text anew and return how many there were; nothing is done where the database is under the new key already.

    Raises:
        StoreError: a text does not open with the old key; nothing was changed.
    """
    if connection.scalar(READ_KEY_ID) == new.key_id:
        return 0
    count = 0
    for table, key, column, field in _SEALED:
        rows = connection.execute(sa.select(table.c[key], table.c[column]).where(table.c[column].is_not(None))).all()
        change = sa.update(table).where(table.c[key] == sa.bindparam("_key")).values({column: sa.bindparam("_sealed")})
        for row_id, sealed in rows:
            connection.execute(change, {"_key": row_id, "_sealed": new.seal(field, row_id, old.open(field, row_id, sealed))})
        count += len(rows)
    connection.execute(sa.update(meta).where(meta.c.name == KEY_ID).values(value=new.key_id))
    return count
