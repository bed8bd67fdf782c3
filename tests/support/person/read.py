"""What a person's client shows: events that could be read, and events that could not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Read:
    """One event as the person's client shows it."""

    event_id: str
    room_id: str
    sender: str
    type: str
    content: dict[str, Any]
    sent_at_ms: int
    is_encrypted: bool
    trust: str = ""
    """mautrix's word for the device that sent the key, such as `cross-signed-tofu`; empty for a clear event."""
    is_trusted: bool = False
    """Whether the sending device is cross-signed by its owner."""
    session_id: str = ""
    index: int = -1

    @property
    def body(self) -> str:
        """The plain text, the new one for an edit."""
        new = self.content.get("m.new_content")
        return str((new if isinstance(new, dict) else self.content).get("body", ""))

    @property
    def msgtype(self) -> str:
        """`m.text`, `m.notice` ..."""
        return str(self.content.get("msgtype", ""))

    @property
    def relation(self) -> dict[str, Any]:
        """The relation, as it stands in the content."""
        found = self.content.get("m.relates_to")
        return found if isinstance(found, dict) else {}

    @property
    def reply_to(self) -> str | None:
        """The event that it answers, the fallback of a thread included."""
        return (self.relation.get("m.in_reply_to") or {}).get("event_id")

    @property
    def thread(self) -> str | None:
        """The root of its thread."""
        return self.relation.get("event_id") if self.relation.get("rel_type") == "m.thread" else None

    @property
    def replaces(self) -> str | None:
        """The event that it edits."""
        return self.relation.get("event_id") if self.relation.get("rel_type") == "m.replace" else None


@dataclass(slots=True)
class Unread:
    """An event that could not be decrypted, and why."""

    raw: dict[str, Any]
    why: str

    @property
    def event_id(self) -> str:
        """Its id."""
        return str(self.raw["event_id"])
