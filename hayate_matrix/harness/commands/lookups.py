"""`/hashtags` and `/sessions`: what the conversation holds, looked up and never touched (IDX-5 to IDX-9, SES-2).

Promise: a lookup opens nothing and changes nothing; what can't be shown is said to be unavailable, with the reason.
How: it runs before the transaction that answers, in one look at the database, and then asks the session provider for the texts.
"""

from __future__ import annotations

import asyncio
import bisect
import difflib
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from hayate_matrix.core.hashtags import read_tag
from hayate_matrix.core.ids import EventId
from hayate_matrix.harness.commands.answers import Answer, cut, read_page, refuse, write_time

if TYPE_CHECKING:
    from hayate_matrix.core.commands import Command
    from hayate_matrix.core.ids import ConversationId
    from hayate_matrix.core.transcript import SessionProvider
    from hayate_matrix.store.database import Connection
    from hayate_matrix.store.inbox import InboxRow
    from hayate_matrix.store.sessions import Listed
    from hayate_matrix.store.stores import Stores
    from hayate_matrix.store.tags import Page

_MOST_COMPARED = 200
"""Tags that an unknown one is compared with, those beside it in the order of the alphabet: 60 ms at worst, for tags of 64 characters."""
_PLAIN_LINE = "An apostrophe or another quotation mark without a partner hides a tag on its line, so put the tag on a plain line."
_NO_TAGS = f"No message here carries a hashtag yet: write one in a message to me, such as `#release`. {_PLAIN_LINE}"
_NO_SESSIONS = "There is no session here yet: the next message to me begins one."


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A page of pointers, whose texts are still to be asked for."""

    conversation_id: ConversationId
    tag: str
    page: Page


@dataclass(frozen=True, slots=True, kw_only=True)
class Missed:
    """A tag that nobody used, and those that it may have been meant for."""

    tag: str
    known: list[str]


class Lookups:
    """Answers the commands that only read."""

    def __init__(self, stores: Stores, provider: SessionProvider) -> None:
        self._stores = stores
        self._provider = provider

    def look(self, connection: Connection, row: InboxRow, command: Command) -> Answer | Found | Missed:
        """Return the answer to `hashtags` or `sessions`, pointers whose texts `show` asks for, or what `explain` explains."""
        words = command.arguments.split()
        if command.name == "sessions":
            return self._look_for_sessions(connection, row, words)
        if not words:
            tags = self._stores.tags.list_tags(connection, row.conversation_id)
            return Answer("\n".join(f"#{tag}" for tag in tags), is_listing=True) if tags else Answer(_NO_TAGS)
        return self._look_for_messages(connection, row, words)

    def _look_for_messages(self, connection: Connection, row: InboxRow, words: list[str]) -> Answer | Found | Missed:
        tag = read_tag(words[0])
        if tag is None:
            return refuse("hashtags", "That is no hashtag: it begins with a letter, and letters, digits and single hyphens follow.")
        number = _read_number(words[1:])
        if number is None:
            return refuse("hashtags", "`!hashtags` takes one tag, and the number of a page.")
        page = self._stores.tags.find_page(connection, row.conversation_id, tag, number)
        if not page.last:
            return Missed(tag=tag, known=_find_neighbours(tag, self._stores.tags.list_tags(connection, row.conversation_id)))
        if not page.pointers:
            return Answer(f"`#{tag}` has {_count(page.last, 'page')}. For example: `!hashtags #{tag} {page.last}`")
        return Found(conversation_id=row.conversation_id, tag=tag, page=page)

    async def show(self, found: Found) -> Answer:
        """Return the answer that lists what was found."""
        lines: list[str] = []
        links: list[tuple[str, EventId]] = []
        page = found.page
        texts = await self._provider.resolve(found.conversation_id, page.pointers)
        for pointer, resolved in zip(page.pointers, texts, strict=True):
            time = write_time(pointer.indexed_at)
            lines.append(f"{time} · {pointer.session_id}")
            lines.append(f"  {cut(resolved.text) if resolved.text is not None else f'unavailable: {resolved.missing}'}")
            lines.append(f"  /resume {pointer.session_id}")
            links.append((time, resolved.event_id or EventId("")))
        if page.number < page.last:
            lines.append(f"Page {page.number} of {page.last}; the next: /hashtags #{found.tag} {page.number + 1}")
        return Answer("\n".join(lines), is_listing=True, links=links)

    async def explain(self, missed: Missed) -> Answer:
        """Return the sentence for a tag that nobody used here, with the nearest one where one is near."""
        if not missed.known:
            return Answer(_NO_TAGS)
        # In a thread: comparing long tags takes milliseconds, and hostile ones may all be long.
        near = await asyncio.to_thread(difflib.get_close_matches, missed.tag, missed.known, n=1)
        hint = f" Did you mean `#{near[0]}`?" if near else ""
        return Answer(f"No message here carries `#{missed.tag}`.{hint} {_PLAIN_LINE}")

    def _look_for_sessions(self, connection: Connection, row: InboxRow, words: list[str]) -> Answer:
        number = _read_number(words)
        if number is None:
            return refuse("sessions", "`!sessions` takes the number of a page.")
        listed, last = self._stores.sessions.list_page(connection, row.conversation_id, number)
        if not last:
            return Answer(_NO_SESSIONS)
        if not listed:
            return Answer(f"There {'is' if last == 1 else 'are'} {_count(last, 'page')} of sessions. For example: `!sessions {last}`")
        lines = [line for one in listed for line in _show(one, row)]
        if number < last:
            lines.append(f"Page {number} of {last}; the next: /sessions {number + 1}")
        return Answer("\n".join(lines), is_listing=True, links=())


def _show(listed: Listed, row: InboxRow) -> list[str]:
    session = listed.session
    used_at = datetime.fromtimestamp(session.used_at_ms / 1000, UTC)
    parts = [cut(listed.title) or "(no title)", f"last used {used_at:%Y-%m-%dT%H:%M:%SZ}", _count(listed.messages, "message")]
    if session.state == "active":
        parts.append("active" if session.focus == row.focus else "active in a thread" if session.focus else "active outside this thread")
    return [" · ".join(parts), f"  /resume {session.id}"]


def _find_neighbours(tag: str, known: list[str]) -> list[str]:
    place = bisect.bisect(known, tag)
    start = max(0, min(place - _MOST_COMPARED // 2, len(known) - _MOST_COMPARED))
    return known[start : start + _MOST_COMPARED]


def _read_number(words: list[str]) -> int | None:
    """Return the page that the rest of a command names, the first where it names none; None where it is no number of a page."""
    return (read_page(words[0]) if words else 1) if len(words) <= 1 else None


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"
