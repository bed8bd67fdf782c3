"""The index of hashtags: which entries of which sessions carry a tag, in one conversation (IDX-1, IDX-2).

Promise: a pointer is written once for an entry and a tag, and only the conversation that it was written for can find it. No text is
         copied.
How: the pointers of a tag are numbered from 1 upwards, so that any page of them is one range of the primary key, however many there are
     (IDX-10), and their order rests on no clock (IN-11).
Not here: what a pointer leads to (sessions resolve it).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import sqlalchemy as sa

from hayate_matrix.core.transcript import Pointer
from hayate_matrix.store.schema import tags

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Connection

    from hayate_matrix.core.ids import ConversationId, EntryId, SessionId

PAGE_SIZE = 10
"""Pointers on a page (IDX-6)."""

_OF_TAG = (tags.c.conversation_id == sa.bindparam("conversation_id"), tags.c.tag == sa.bindparam("tag"))
_NEXT = sa.select(sa.func.coalesce(sa.func.max(tags.c.ordinal), 0) + 1).where(*_OF_TAG).scalar_subquery()
_ADD = sa.insert(tags).from_select(
    ["conversation_id", "tag", "ordinal", "session_id", "entry_id", "indexed_at_ms"],
    sa.select(
        sa.bindparam("conversation_id", type_=sa.Text),
        sa.bindparam("tag", type_=sa.Text),
        _NEXT,
        sa.bindparam("session_id", type_=sa.Text),
        sa.bindparam("entry_id", type_=sa.Text),
        sa.bindparam("now_ms", type_=sa.BigInteger),
    ).where(~sa.exists().where(tags.c.entry_id == sa.bindparam("entry_id"), tags.c.tag == sa.bindparam("tag"))),
    include_defaults=False,
)
_LAST = sa.select(sa.func.max(tags.c.ordinal)).where(*_OF_TAG).scalar_subquery()
_SKIPPED = sa.bindparam("skipped", type_=sa.BigInteger)
_FIND_PAGE = (
    sa.select(tags.c.session_id, tags.c.entry_id, tags.c.indexed_at_ms, _LAST.label("last"))
    .where(*_OF_TAG, tags.c.ordinal <= _LAST - _SKIPPED)
    .order_by(tags.c.ordinal.desc())
    .limit(PAGE_SIZE)
)
_COUNT = sa.select(_LAST)


def _make_list() -> sa.Select[tuple[str]]:
    """Build the query of all tags: from one to the next by the index, so that it takes as long as there are tags, not pointers."""
    of_conversation = tags.c.conversation_id == sa.bindparam("conversation_id")
    found = sa.select(sa.func.min(tags.c.tag).label("tag")).where(of_conversation).cte("found", recursive=True)
    following = sa.select(sa.func.min(tags.c.tag)).where(of_conversation, tags.c.tag > found.c.tag).scalar_subquery()
    found = found.union_all(sa.select(following).where(found.c.tag.is_not(None)))
    return sa.select(found.c.tag).where(found.c.tag.is_not(None))


_LIST = _make_list()


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """One page of the pointers of a tag, newest first; empty where there is no such page."""

    pointers: tuple[Pointer, ...]
    number: int
    last: int
    """Number of the last page; 0 where the conversation has no such tag."""


class Tags:
    """Reads and writes the index within the caller's transaction."""

    def add(
        self,
        connection: Connection,
        conversation_id: ConversationId,
        names: Sequence[str],
        session_id: SessionId,
        entry_id: EntryId,
        now: datetime,
    ) -> None:
        """Add a pointer to an entry for each tag; those that it has already stay as they are."""
        for name in names:
            connection.execute(
                _ADD,
                {
                    "conversation_id": conversation_id,
                    "tag": name,
                    "session_id": session_id,
                    "entry_id": entry_id,
                    "now_ms": int(now.timestamp() * 1000),
                },
            )

    def list_tags(self, connection: Connection, conversation_id: ConversationId) -> list[str]:
        """Return the tags that the conversation has collected, sorted."""
        return sorted(connection.scalars(_LIST, {"conversation_id": conversation_id}))

    def find_page(self, connection: Connection, conversation_id: ConversationId, tag: str, number: int) -> Page:
        """Return the page `number` (from 1) of a tag's pointers."""
        wanted = {"conversation_id": conversation_id, "tag": tag, "skipped": (number - 1) * PAGE_SIZE}
        rows = connection.execute(_FIND_PAGE, wanted).all()
        count = rows[0].last if rows else connection.scalar(_COUNT, wanted) or 0
        pointers = tuple(
            Pointer(session_id=row.session_id, entry_id=row.entry_id, indexed_at=_read_time(row.indexed_at_ms)) for row in rows
        )
        return Page(pointers=pointers, number=number, last=-(-count // PAGE_SIZE))


def _read_time(at_ms: int) -> datetime:
    return datetime.fromtimestamp(at_ms // 1000, UTC).replace(microsecond=at_ms % 1000 * 1000)
