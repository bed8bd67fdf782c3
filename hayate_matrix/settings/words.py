"""Settings in words: what a setting allows, what is wrong with a value, and how a value is shown."""

from __future__ import annotations

import json
import re
import types
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, SecretStr

from hayate_matrix.core import allowlist
from hayate_matrix.settings.model import Settings

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo
    from pydantic_core import ErrorDetails

MASK = "********"

_MONEY = "a number above 0 and at most 1000000, such as 2.5"
_ALLOWED = {
    "matrix.homeserver": "an address like https://matrix.example.org, with a port if it needs one",
    "matrix.user": "a whole user id (@bot:example.org)",
    "matrix.rooms": f"a list; each item is {allowlist.ROOM_FORMS}",
    "matrix.people": f"a list; each item is {allowlist.PERSON_FORMS}",
    "matrix.inviters": f"a list; each item is {allowlist.PERSON_FORMS}",
    "matrix.ignore": f"a list; each item is {allowlist.PATTERN_FORMS}",
    "matrix.room_triggers": "a table of rooms, each with mention, thread or always; as a text room=trigger, separated by commas",
    "commands.power": "a table of commands, each with a number from -100 to 100; as a text command=number, separated by commas",
    "limits.person_money_day": _MONEY,
    "limits.room_money_day": _MONEY,
    "store.url": "sqlite:////var/lib/hayate/hayate.db or postgresql://user@host/name",
}
"""Words for settings whose type alone says too little."""

_WORDS: dict[Any, str] = {
    bool: "true or false",
    Path: "a path; a relative one stands in the home",
}


@cache
def find_fields() -> dict[str, FieldInfo]:
    """Return every setting by its `section.name`, in the order of the model."""
    found: dict[str, FieldInfo] = {}
    for section, part in Settings.model_fields.items():
        model = part.annotation
        if isinstance(model, type) and issubclass(model, BaseModel):
            found.update({f"{section}.{key}": known for key, known in model.model_fields.items()})
    return found


def is_secret(field: FieldInfo) -> bool:
    """Return whether the value must never be shown or taken from the command line."""
    return field.annotation is SecretStr or SecretStr in get_args(field.annotation)


def mask(name: str, value: object) -> str:
    """Return how a value is shown: as in the settings file, without what is secret in it."""
    if value is None:
        return "unset"
    if isinstance(value, SecretStr):
        return MASK
    if name == "store.url":
        hidden = re.sub(r"(://[^/@:]*):[^/@]+@", rf"\1:{MASK}@", str(value))
        return json.dumps(re.sub(r"([?&]password=)[^&]*", rf"\1{MASK}", hidden))
    if isinstance(value, Path):
        return json.dumps(str(value))
    return json.dumps(value, ensure_ascii=False)


def describe_allowed(field: FieldInfo) -> str:
    """Return in words what the setting takes."""
    name = next((name for name, known in find_fields().items() if known is field), "")
    if name in _ALLOWED:
        return _ALLOWED[name]
    limits = _read_limits(field)
    kind = _strip(field.annotation)
    if get_origin(kind) is Literal:
        *first, last = (json.dumps(choice) for choice in get_args(kind))
        return f"{', '.join(first)} or {last}" if first else last
    if kind is int:
        return f"a whole number from {limits['ge']} to {limits['le']}"
    if "max_length" in limits:
        return f"a text of {limits['min_length']} to {limits['max_length']} characters"
    return _WORDS.get(get_origin(kind) or kind, "a text")


def tell_reason(details: ErrorDetails, *, is_hidden: bool) -> str:
    """Return what is wrong with the value, as the rest of a sentence."""
    kind, value = details["type"], details["input"]
    if kind == "item":
        text = str(details["ctx"]["problem"])
        return text if text.endswith(".") else f"{text}."
    shown = "it" if is_hidden or not isinstance(value, str | int | float | bool) else json.dumps(value, ensure_ascii=False)
    if kind in {"greater_than_equal", "greater_than", "string_too_short"}:
        return f"{shown} is too small."
    if kind in {"less_than_equal", "less_than", "string_too_long"}:
        return f"{shown} is too large."
    if kind == "json":
        return f"{shown} {details['msg']}."
    return f"{shown} is not what can be used here."


def _strip(annotation: Any) -> Any:  # noqa: ANN401  annotations have no common type
    """Return the type without `| None` and without `Annotated`."""
    if get_origin(annotation) in {Union, types.UnionType}:
        rest = [part for part in get_args(annotation) if part is not type(None)]
        return _strip(rest[0]) if len(rest) == 1 else annotation
    if hasattr(annotation, "__metadata__"):
        return _strip(annotation.__origin__)
    return annotation


def _read_limits(field: FieldInfo) -> dict[str, Any]:
    limits: dict[str, Any] = {}
    for part in field.metadata:
        for limit in ("ge", "le", "min_length", "max_length"):
            if getattr(part, limit, None) is not None:
                limits[limit] = getattr(part, limit)
    return limits
