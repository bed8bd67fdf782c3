"""Matrix events to facts: what a clear event says that matters to the harness, or nothing.

Everything read here was written by somebody else: a field of a wrong type counts as absent, a message without its required fields is no
fact and raises, so that the caller sets it aside.
"""

from __future__ import annotations

import re
from html import unescape
from typing import TYPE_CHECKING, Any, TypedDict
from urllib.parse import unquote

from hayate_matrix.core.facts import AnyFact, Edit, Membership, Message, Provenance, Reaction, Redaction, Tombstone
from hayate_matrix.core.ids import EventId, RoomId, UserId
from hayate_matrix.matrix.rooms import read_event_id

if TYPE_CHECKING:
    from collections.abc import Mapping

DELIVERY_KEY = "dev.hayate.delivery"
"""Field of the bot's own events: the delivery's id and part. It finds a send again, and marks bots of this kind to each other."""

_TEXT_TYPES = frozenset({"m.text", "m.emote"})
_FILE_TYPES = frozenset({"m.image", "m.file", "m.audio", "m.video"})
_PILL = re.compile(r"""href\s*=\s*["']https://matrix\.to/#/(@[^"'?/\s]{1,300})""", re.IGNORECASE)
_LATEST_MS = 2**53
"""Timestamps beyond what canonical JSON can hold are nonsense."""


class _Common(TypedDict):
    event_id: EventId
    room_id: RoomId
    sender: UserId
    sent_at_ms: int
    is_encrypted: bool
    provenance: Provenance


def read_fact(
    event: Mapping[str, Any], room_id: RoomId, *, own_user_id: UserId, is_direct: bool, is_encrypted: bool, provenance: Provenance = "live"
) -> AnyFact | None:
    """Return the fact that a clear event tells, or None where it matters to nobody.

    Args:
        event: as the server gave it, or as it was decrypted.
        room_id: where it happened.
        own_user_id: the bot's; its own messages are no facts.
        is_direct: whether the room is a direct message.
        is_encrypted: whether it came encrypted.
        provenance: how it came.

    Raises:
        KeyError, TypeError, ValueError: it is malformed.
    """
    event_type, content, sender, at = event["type"], event["content"], event["sender"], event["origin_server_ts"]
    if not isinstance(content, dict) or not isinstance(sender, str) or not sender.startswith("@"):
        raise TypeError("an event without content or sender")
    if isinstance(at, bool) or not isinstance(at, int) or not 0 <= at <= _LATEST_MS:
        raise ValueError("an event without a time")
    common = _Common(
        event_id=read_event_id(event),
        room_id=room_id,
        sender=UserId(sender),
        sent_at_ms=at,
        is_encrypted=is_encrypted,
        provenance=provenance,
    )
    is_state = "state_key" in event and not is_encrypted
    if is_state and event_type == "m.room.member":
        return _read_member(event, content, common, own_user_id)
    if is_state and event_type == "m.room.tombstone":
        replacement = content.get("replacement_room")
        return Tombstone(**common, replacement=RoomId(replacement) if isinstance(replacement, str) else None)
    # A redaction is the homeserver's decision, so it comes in clear; one that a member encrypts is that member's word alone.
    if event_type == "m.room.redaction" and not is_encrypted:
        target = content.get("redacts", event.get("redacts"))
        return Redaction(**common, target=EventId(target)) if isinstance(target, str) else None
    if sender != own_user_id and event_type == "m.reaction":
        return _read_reaction(content, common)
    is_speech = sender != own_user_id and event_type == "m.room.message" and content
    return _read_message(content, common, is_direct=is_direct) if is_speech else None


def _read_member(event: Mapping[str, Any], content: dict[str, Any], common: _Common, own_user_id: UserId) -> Membership | None:
    user, membership = event.get("state_key"), content.get("membership")
    if not isinstance(user, str) or membership not in ("invite", "join", "leave", "ban", "knock"):
        raise ValueError("a member event without a user or a membership")
    previous = event.get("unsigned", {}).get("prev_content", {}) if isinstance(event.get("unsigned"), dict) else {}
    if isinstance(previous, dict) and previous.get("membership") == membership and user != own_user_id:
        return None
    return Membership(**common, user=UserId(user), membership=membership, is_own=user == own_user_id)


def _read_reaction(content: dict[str, Any], common: _Common) -> Reaction | None:
    relation = content.get("m.relates_to")
    if not isinstance(relation, dict) or relation.get("rel_type") != "m.annotation":
        return None
    target, key = relation.get("event_id"), relation.get("key")
    if not isinstance(target, str) or not isinstance(key, str):
        return None
    return Reaction(**common, target=EventId(target), key=key[:64])


def _read_message(content: dict[str, Any], common: _Common, *, is_direct: bool) -> Message | Edit | None:
    relation = content.get("m.relates_to")
    relation = relation if isinstance(relation, dict) else {}
    if relation.get("rel_type") == "m.replace":
        return _read_edit(content, relation, common, is_direct=is_direct)
    msgtype = content["msgtype"]
    if not isinstance(msgtype, str) or msgtype == "m.notice":
        return None
    body = content["body"]
    if not isinstance(body, str):
        raise TypeError("a message without a body")
    reply_to, is_fallback = _read_reply(relation)
    text, file_name = body, None
    if msgtype in _FILE_TYPES:
        # A caption is a body beside a file name of its own; a body alone is the file's name (TAG-8).
        name = content.get("filename")
        file_name = name if isinstance(name, str) else body
        text = body if isinstance(name, str) and name != body else ""
    elif msgtype not in _TEXT_TYPES:
        return None
    formatted = _read_formatted(content)
    return Message(
        **common,
        msgtype=msgtype,
        body=strip_reply_fallback(text) if relation.get("m.in_reply_to") else text,
        formatted_body=formatted,
        mentions=_read_mentions(content),
        pills=read_pills(formatted),
        thread=_read_thread(relation),
        reply_to=None if is_fallback else reply_to,
        is_direct=is_direct,
        file_name=file_name,
        loop_marker=DELIVERY_KEY in content,
    )


def _read_edit(content: dict[str, Any], relation: dict[str, Any], common: _Common, *, is_direct: bool) -> Edit | None:
    target, fresh = relation.get("event_id"), content.get("m.new_content")
    if not isinstance(target, str) or not isinstance(fresh, dict) or fresh.get("msgtype") not in _TEXT_TYPES:
        return None
    body = fresh.get("body")
    if not isinstance(body, str) or DELIVERY_KEY in content:
        return None
    formatted = _read_formatted(fresh)
    return Edit(
        **common,
        target=EventId(target),
        body=strip_reply_fallback(body),
        formatted_body=formatted,
        mentions=_read_mentions(fresh),
        pills=read_pills(formatted),
        is_direct=is_direct,
    )


def _read_formatted(content: dict[str, Any]) -> str | None:
    formatted = content.get("formatted_body")
    return formatted if content.get("format") == "org.matrix.custom.html" and isinstance(formatted, str) else None


def _read_mentions(content: dict[str, Any]) -> tuple[UserId, ...] | None:
    mentions = content.get("m.mentions")
    if not isinstance(mentions, dict):
        return None
    users = mentions.get("user_ids")
    return tuple(UserId(user) for user in users if isinstance(user, str)) if isinstance(users, list) else ()


def _read_thread(relation: dict[str, Any]) -> EventId | None:
    root = relation.get("event_id")
    return EventId(root) if relation.get("rel_type") == "m.thread" and isinstance(root, str) else None


def _read_reply(relation: dict[str, Any]) -> tuple[EventId | None, bool]:
    reply = relation.get("m.in_reply_to")
    target = reply.get("event_id") if isinstance(reply, dict) else None
    is_fallback = relation.get("rel_type") == "m.thread" and relation.get("is_falling_back") is True
    return (EventId(target) if isinstance(target, str) else None), is_fallback


def read_pills(formatted: str | None) -> tuple[UserId, ...]:
    """Return the user ids that `formatted_body` links to through matrix.to."""
    if not formatted or "matrix.to" not in formatted:
        return ()
    return tuple(dict.fromkeys(UserId(unquote(unescape(match))) for match in _PILL.findall(formatted)))


def strip_reply_fallback(body: str) -> str:
    """Return `body` without the quoted lines that older clients put before a reply.

    The fallback is the leading run of lines that begin with "> ", the first of them naming a sender as `<@user:server>`.
    """
    if not body.startswith(("> <@", "> * <@")):
        return body
    lines = body.split("\n")
    index = 0
    while index < len(lines) and lines[index].startswith(("> ", ">")):
        index += 1
    if index < len(lines) and not lines[index].strip():
        index += 1
    return "\n".join(lines[index:])
