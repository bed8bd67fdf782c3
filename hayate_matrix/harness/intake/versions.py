"""The words of a message: made valid, edited, taken back, and the tags in them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from hayate_matrix.core.hashtags import parse_tags

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hayate_matrix.core.ids import EventId
    from hayate_matrix.core.transcript import Request


def clean(text: str) -> str:
    """Return `text` as valid Unicode: half a surrogate pair, which JSON can write, would stop it at every later border."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def find_tags(body: str, text: str) -> tuple[str, ...]:
    """Return the tags of a message whose `body` is `text` once the mention of the bot is taken off (TAG-8).

    What only one of the two shows is none: blanks that were taken off make code, and what touches the mention is no tag.
    """
    tags = parse_tags(text)
    return tags if not tags or body == text else keep_tags(tags, body)


def edit_content(content: Request, event_id: EventId, edit: EventId, text: str) -> Request:
    """Return `content` with the text that an edit gave it; what it said before stays known, in case the edit is removed."""
    return replace(content, text=text, versions=(*(content.versions or ((event_id, content.text),)), (edit, text)))


def keep_tags(tags: Sequence[str], text: str) -> tuple[str, ...]:
    """Return those of `tags` that an edit left in its `text`; it never adds one (IN-4)."""
    left = set(parse_tags(text))
    return tuple(tag for tag in tags if tag in left)


def take_back(content: Request, edit: EventId) -> Request | None:
    """Return `content` without what an edit gave it, with the text of before where that was the last; None where it gave nothing."""
    versions = tuple(version for version in content.versions if version[0] != edit)
    if versions == content.versions or not versions:
        return None
    return replace(content, text=versions[-1][1], versions=versions)


def find_first_tags(content: Request) -> tuple[str, ...]:
    """Return the tags of the text that a message had before any edit."""
    return parse_tags(content.versions[0][1])
