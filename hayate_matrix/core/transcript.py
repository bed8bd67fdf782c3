"""The elements of a transcript, as store, runtime and harness pass them around, and what a holder of transcripts must answer (SES-4)."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from hayate_matrix.core.ids import ConversationId, EntryId, EventId, SessionId, UserId


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a person asked, with the leading mention of the bot removed."""

    sender: UserId
    text: str
    reference: str | None = None
    """Text of the message that it replies to (IN-6): data, no words of the sender."""
    is_edit: bool = False
    """Whether it is the new text of a message that was taken up before (IN-4)."""
    file_name: str | None = None
    """Name of an attached file that the runtime is not handed."""
    versions: tuple[tuple[EventId, str], ...] = ()
    """In the inbox, of a message that was edited before it was taken up: each event that gave it a text, oldest first, with that text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """What the model wants done; `id` is the same however often the call is made."""

    id: str
    name: str
    arguments: str
    """As the model wrote them, usually JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What one step used, as the runtime reports it."""

    tokens: int = 0
    cost_micros: int = 0
    """Millionths of the currency in which the runtime reports."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """One step of the model: text, tool calls, or both; without calls it is the answer."""

    text: str
    calls: tuple[ToolCall, ...] = ()
    native: str = ""
    """What the runtime wants back with this step, in a form of its own."""
    usage: Usage | None = field(default=None, compare=False)
    """What it took to say this; no part of the transcript, so it is counted and not kept with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a tool gave."""

    call_id: str
    name: str
    text: str
    outcome: Literal["done", "failed", "unknown", "stopped"] = "done"
    """`unknown`: the program ended while the tool ran; it may have had its effect."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Steer:
    """What a person said in the middle of a turn (CORE-4)."""

    sender: UserId
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """What the harness says about the turn itself: stopped, failed."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Removed:
    """A stone in the place of an element whose text was removed in the room (IN-5)."""

    kind: str


Element = Request | Said | Result | Steer | Note | Removed

_KINDS: dict[str, type[Element]] = {"request": Request, "said": Said, "result": Result, "steer": Steer, "note": Note}
_NAMES = {kind: name for name, kind in _KINDS.items()}
_FIELDS = {kind: tuple(one.name for one in dataclasses.fields(kind) if one.compare) for kind in (*_KINDS.values(), Removed, ToolCall)}
_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


def get_kind(element: Element) -> str:
    """Return the word that names the kind of `element` in the store."""
    return element.kind if isinstance(element, Removed) else _NAMES[type(element)]


def dump_element(element: Element) -> str:
    """Return the content of `element` as one line of JSON that `load_element` reads back."""
    fields = _get_fields(element)
    if isinstance(element, Said):
        fields["calls"] = [_get_fields(call) for call in element.calls]
    return _ENCODER.encode(fields)


def _get_fields(element: Element | ToolCall) -> dict[str, Any]:
    """Return what `dataclasses.asdict` would give of plain fields, in a third of the time: each step of a turn is written so."""
    return {name: getattr(element, name) for name in _FIELDS[type(element)]}


def load_element(kind: str, text: str | None) -> Element:
    """Return the element that `dump_element` wrote; a stone where its text is gone, or is not what was written."""
    if text is None:
        return Removed(kind=kind)
    try:
        fields: dict[str, Any] = json.loads(text)
        if kind == "said":
            fields["calls"] = tuple(ToolCall(**call) for call in fields["calls"])
        if kind == "request":
            fields["versions"] = tuple((event_id, words) for event_id, words in fields.get("versions", ()))
        return _KINDS[kind](**fields)
    except (ValueError, KeyError, TypeError, AttributeError):
        return Removed(kind=kind)


def find_open_calls(elements: Sequence[Element]) -> tuple[ToolCall, ...]:
    """Return the calls of the last step that have no result yet, in the order in which they are made."""
    answered: set[str] = set()
    for element in reversed(elements):
        if isinstance(element, Result):
            answered.add(element.call_id)
        elif isinstance(element, Said):
            return tuple(call for call in element.calls if call.id not in answered)
    return ()


Missing = Literal["session removed", "message removed", "message redacted"]
"""Why there is no text behind a pointer: retention took the session; the entry is gone or unreadable; its message was redacted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pointer:
    """Where an indexed message is kept, and since when the index knows it."""

    session_id: SessionId
    entry_id: EntryId
    indexed_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """What a pointer leads to: a text, or the reason why there is none."""

    text: str | None = None
    missing: Missing | None = None
    event_id: EventId | None = None
    """The message in the room, as far as it is still known."""


class SessionProvider(Protocol):
    """Whoever holds the sessions; the built-in one is the database."""

    async def resolve(self, conversation_id: ConversationId, pointers: Sequence[Pointer]) -> list[Resolved]:
        """Return what each pointer leads to, in order, for as long as retention promises; to be missing is no error.

        Contract: a pointer to a session of another conversation is answered like one to a session that was removed.
        """
        ...
