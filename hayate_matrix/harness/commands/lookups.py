"""`/hashtags` and `/sessions`: what the conversation holds, looked up and never touched (IDX-5 to IDX-9, SES-2).

Promise: a lookup opens nothing and changes nothing; what can't be shown is said to be unavailable, with the reason.
How: it runs before the transaction that answers, on a consistent state of the database, and asks the session provider for the texts.
"""

from __future__ import annotations

import difflib
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from hayate_matrix.core.hashtags import read_tag
from hayate_matrix.core.ids import EventId
from hayate_matrix.harness.commands.answers import Answer, cut, read_page, refuse, write_time

if TYPE_CHECKING:
    from hayate_matrix.core.commands import Command
    from hayate_matrix.core.ids import ConversationId
    from hayate_matrix.core.transcript import SessionProvider
    from hayate_matrix.store.inbox import InboxRow
    from hayate_matrix.store.sessions import Listed
    from hayate_matrix.store.stores import Stores

_MOST_COMPARED = 2000
"""Tags that an unknown one is compared with, so that a typing error costs a few milliseconds in any room."""
_PLAIN_LINE = "An apostrophe or another quotation mark without a partner hides a tag on its line, so put the tag on a plain line."
_NO_TAGS = f"No message here carries a hashtag yet: write one in a message to me, such as `#release`. {_PLAIN_LINE}"
_NO_SESSIONS = "There is no session here yet: the next message to me begins one."


class Lookups:
    """Answers the commands that only read."""

    def __init__(self, stores: Stores, provider: SessionProvider) -> None:
        self._stores = stores
        self._provider = provider

    async def find(self, row: InboxRow, command: Command) -> Answer:
        """Return the answer to `hashtags` or `sessions`."""
        words = command.arguments.split()
        if command.name == "sessions":
            return await self._find_sessions(row, words)
        return await self._find_hashtags(row.conversation_id, words)

    async def _find_hashtags(self, conversation_id: ConversationId, words: list[str]) -> Answer:
        if not words:
            tags = await self._list_tags(conversation_id)
            return Answer("\n".join(f"#{tag}" for tag in tags), is_listing=True) if tags else Answer(_NO_TAGS)
        tag = read_tag(words[0])
        if tag is None:
            return refuse("hashtags", "That is no hashtag: it begins with a letter, and letters, digits and single hyphens follow.")
        number = read_page(words[1]) if len(words) > 1 else 1
        if number is None or len(words) > 2:  # noqa: PLR2004 - a tag and a page
            return refuse("hashtags", "`!hashtags` takes one tag, and the number of a page.")
        page = await self._stores.database.read(lambda connection: self._stores.tags.find_page(connection, conversation_id, tag, number))
        if not page.last:
            return await self._miss(conversation_id, tag)
        if not page.pointers:
            return Answer(f"`#{tag}` has {_count(page.last, 'page')}. For example: `!hashtags #{tag} {page.last}`")
        lines: list[str] = []
        links: list[tuple[str, EventId]] = []
        found = await self._provider.resolve(conversation_id, page.pointers)
        for pointer, resolved in zip(page.pointers, found, strict=True):
            time = write_time(pointer.indexed_at)
            lines.append(f"{time} · {pointer.session_id}")
            lines.append(f"  {cut(resolved.text) if resolved.text is not None else f'unavailable: {resolved.missing}'}")
            lines.append(f"  /resume {pointer.session_id}")
            links.append((time, resolved.event_id or EventId("")))
        if number < page.last:
            lines.append(f"Page {number} of {page.last}; the next: /hashtags #{tag} {number + 1}")
        return Answer("\n".join(lines), is_listing=True, links=links)

    async def _miss(self, conversation_id: ConversationId, tag: str) -> Answer:
        """Return the sentence for a tag that nobody used here, with the nearest one where one is near."""
        known = await self._list_tags(conversation_id)
        if not known:
            return Answer(_NO_TAGS)
        near = difflib.get_close_matches(tag, known[:_MOST_COMPARED], n=1)
        hint = f" Did you mean `#{near[0]}`?" if near else ""
        return Answer(f"No message here carries `#{tag}`.{hint} {_PLAIN_LINE}")

    async def _list_tags(self, conversation_id: ConversationId) -> list[str]:
        return await self._stores.database.read(lambda connection: self._stores.tags.list_tags(connection, conversation_id))

    async def _find_sessions(self, row: InboxRow, words: list[str]) -> Answer:
        number = read_page(words[0]) if words else 1
        if number is None or len(words) > 1:
            return refuse("sessions", "`!sessions` takes the number of a page.")
        listed, last = await self._stores.database.read(
            lambda connection: self._stores.sessions.list_page(connection, row.conversation_id, number)
        )
        if not last:
            return Answer(_NO_SESSIONS)
        if not listed:
            return Answer(f"There {'is' if last == 1 else 'are'} {_count(last, 'page')} of sessions. For example: `!sessions {last}`")
        lines = [line for one in listed for line in _show(one, row)]
        if number < last:
            lines.append(f"Page {number} of {last}; the next: /sessions {number + 1}")
        return Answer("\n".join(lines), is_listing=True)


def _show(listed: Listed, row: InboxRow) -> list[str]:
    session = listed.session
    used_at = datetime.fromtimestamp(session.used_at_ms / 1000, UTC)
    parts = [cut(listed.title) or "(no title)", f"last used {used_at:%Y-%m-%dT%H:%M:%SZ}", _count(listed.messages, "message")]
    if session.state == "active":
        parts.append("active" if session.focus == row.focus else "active in a thread" if session.focus else "active outside this thread")
    return [" · ".join(parts), f"  /resume {session.id}"]


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"
