"""Lines that are shown exactly as they are, the first words of some of them links to events of the room.

Promise: nothing in a line is markup, whoever wrote it; the plain body is the lines themselves.
"""

from __future__ import annotations

import html
from typing import TYPE_CHECKING
from urllib.parse import quote

from hayate_matrix.matrix.render.pieces import KEYS_BYTES, LEAST_BYTES, MAX_PARTS, Rendered, leave_rest, measure

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hayate_matrix.core.ids import EventId, RoomId

_BREAK_BYTES = 10
"""What joins a line to the one before in both texts."""


def make_permalink(room_id: RoomId, event_id: EventId, servers: Sequence[str]) -> str:
    """Return the matrix.to address of an event, with the servers that know the room (a room id of version 12 names none)."""
    via = "&".join(f"via={quote(server, safe='')}" for server in servers)
    return f"https://matrix.to/#/{quote(room_id, safe='!')}/{quote(event_id, safe='')}{'?' if via else ''}{via}"


def split_listing(text: str, links: Sequence[tuple[str, str]], *, max_bytes: int) -> list[Rendered]:
    """Return the lines of `text` as one to five messages, each with body and HTML together under `max_bytes` of JSON.

    `links` are the first words of lines, in their order, with the address that each leads to, the empty address for none. Where five
    messages are not enough, four are returned and the last carries `overflow`.

    Raises:
        ValueError: `max_bytes` is under 400.
    """
    if max_bytes < LEAST_BYTES:
        message = f"max_bytes is {max_bytes}; it takes at least {LEAST_BYTES}"
        raise ValueError(message)
    budget = max_bytes - KEYS_BYTES
    groups: list[list[tuple[str, str]]] = [[]]
    spent = 0
    for line, markup in _show_lines(text, links, budget):
        cost = measure(line) + measure(markup) + _BREAK_BYTES
        if groups[-1] and spent + cost > budget:
            if len(groups) == MAX_PARTS:
                return leave_rest([_join(group) for group in groups[: MAX_PARTS - 1]], text)
            groups.append([])
            spent = 0
        groups[-1].append((line, markup))
        spent += cost
    return [_join(group) for group in groups]


def _show_lines(text: str, links: Sequence[tuple[str, str]], budget: int) -> Iterator[tuple[str, str]]:
    """Yield each line with its HTML; one that is too long for a message in pieces."""
    waiting = list(reversed(links))
    longest = (budget - _BREAK_BYTES) // 24
    for line in text.encode("utf-8", "replace").decode().replace("\0", "\ufffd").split("\n"):
        if waiting and line.startswith(waiting[-1][0]):
            label, address = waiting.pop()
            yield line, _show_line(line, label, address)
        elif len(line) <= longest:
            yield line, _show_line(line, "", "")
        else:
            for start in range(0, len(line), longest):
                piece = line[start : start + longest]
                yield piece, _show_line(piece, "", "")


def _show_line(line: str, label: str, address: str) -> str:
    if address:
        return f'<a href="{html.escape(address)}">{html.escape(label)}</a>{html.escape(line.removeprefix(label))}'
    words = line.lstrip(" ")
    return "&nbsp;" * (len(line) - len(words)) + html.escape(words)


def _join(lines: list[tuple[str, str]]) -> Rendered:
    body = "\n".join(line for line, _ in lines)
    is_plain = all(html.unescape(markup) == line for line, markup in lines)
    return Rendered(body, None if is_plain else "<br>".join(markup for _, markup in lines))
