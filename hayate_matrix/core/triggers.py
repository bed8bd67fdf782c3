"""Whether a message is meant for the bot (ROOM-5), and whether a program seems to send it (IN-9).

Not here: who may speak at all (core/allowlist).
"""

from __future__ import annotations

import html
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from hayate_matrix.core.ids import UserId

Trigger = Literal["mention", "thread", "always"]

_LEADING_PILL = re.compile(
    r"\s*(?:<p>\s*)?<a\s[^>]*href=[\"']https://matrix\.to/#/([^\"'?]+)(?:\?[^\"']*)?[\"'][^>]*>([^<]*)</a>", re.IGNORECASE
)
_PILL_CHARACTERS = 1000
"""How much of a formatted body is looked at for a leading pill: two ids of 255 bytes fit, percent-encoded, and no text costs time."""

_READING_S = 1.0
_TYPED_A_SECOND = 15
"""Characters: half as much again as somebody types at 120 words a minute."""
_SLOWEST_S = 10.0
"""What comes later than this after the bot's message is no quick exchange, however long it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """What a message says about whom it is meant for."""

    body: str
    formatted_body: str | None = None
    mentions: tuple[UserId, ...] | None = None
    pills: tuple[UserId, ...] = ()
    is_direct: bool = False
    is_reply_to_bot: bool = False
    is_in_addressed_thread: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Speaker:
    """The bot, as people call it."""

    user_id: UserId
    names: tuple[str, ...] = ()
    """Display names; the local part of the user id always counts."""

    def get_names(self) -> tuple[str, ...]:
        """Return all names by which it can be called, longest first."""
        names = {self.user_id, self.user_id[1:].partition(":")[0], *self.names}
        return tuple(sorted((name for name in names if name), key=len, reverse=True))


def decide_trigger(address: Address, speaker: Speaker, trigger: Trigger) -> bool:
    """Tell whether the message asks the bot for an answer.

    In a direct message every message does. In a room: `m.mentions` first, then a matrix.to pill, then `@name` or `name:` at the start;
    a reply to one of the bot's messages; a thread that it was addressed in, unless `trigger` is `mention`; everything where it is `always`.
    """
    if address.is_direct or trigger == "always" or address.is_reply_to_bot:
        return True
    if trigger == "thread" and address.is_in_addressed_thread:
        return True
    if address.mentions is not None:
        return speaker.user_id in address.mentions
    return speaker.user_id in address.pills or _measure_mention(address.body, speaker) > 0


def strip_mention(body: str, formatted_body: str | None, speaker: Speaker) -> str:
    """Return `body` without leading blanks and without the leading pill, `@name` or `name:` that calls the bot."""
    text = body.lstrip()
    pill = _LEADING_PILL.match((formatted_body or "")[:_PILL_CHARACTERS])
    if pill and html.unescape(pill[1]).replace("%40", "@").replace("%3A", ":") == speaker.user_id:
        label = html.unescape(pill[2]).strip()
        for name in (label, speaker.user_id):
            if name and text.casefold().startswith(name.casefold()):
                return text[len(name) :].lstrip(" \t:,").lstrip()
    length = _measure_mention(text, speaker)
    return text[length:].lstrip(" \t:,").lstrip() if length else text


def is_quick_exchange(text: str, received_at_ms: int, answered_at_ms: int | None) -> bool:
    """Tell whether a message follows the bot's last one sooner than a person could have read that and typed this (IN-9)."""
    if answered_at_ms is None:
        return False
    typing_s = min(_READING_S + len(text) / _TYPED_A_SECOND, _SLOWEST_S)
    return 0 <= received_at_ms - answered_at_ms < typing_s * 1000


def _measure_mention(body: str, speaker: Speaker) -> int:
    """Return the length of the `@name` or `name:` that `body` starts with, 0 without one."""
    folded = body.lstrip().casefold()
    blanks = len(body) - len(body.lstrip())
    for name in speaker.get_names():
        called = name.casefold()
        for form in (called, called if called.startswith("@") else f"@{called}"):
            if not folded.startswith(form):
                continue
            behind = folded[len(form) : len(form) + 1]
            is_called = behind in {":", ","} or (form.startswith("@") and (not behind or behind.isspace()))
            if is_called and not (behind == ":" and form == f"@{called}" and _continues_user_id(folded[len(form) + 1 :])):
                return blanks + len(form) + len(behind.strip())
    return 0


def _continues_user_id(rest: str) -> bool:
    """Tell whether what stands behind `@name:` is a server's name: then another account is called."""
    return bool(rest) and not rest[0].isspace()
