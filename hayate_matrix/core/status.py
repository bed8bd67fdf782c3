"""What the running bot says about itself: a small file in the home that `doctor` reads.

Promise: reading never fails on a file of another version or a cut one; it is then as if there were none.
How: the bot writes it every few seconds and once when it stops (`app`), whole, by renaming; the counts are of that moment.
Not here: the looks that `doctor` takes for itself (homeserver, account, disk).
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from datetime import datetime

FILE_NAME = "status.json"
VERSION = 1
STALE_S = 30.0
"""A running bot writes at least this often; an older file is of a bot that hangs, was killed or has no disk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """The last error of a part, with its stable code (`errors.py`)."""

    code: str
    text: str
    """For the operator; without secrets and without what people wrote."""
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """The bot at one moment."""

    pid: int
    started_at: datetime
    written_at: datetime
    is_stopped: bool = False
    """Whether this is the last line of a bot that stopped in order."""
    ended_by: Trouble | None = None
    """What stopped it, where it was not told to stop."""
    user_id: str = ""
    device_id: str = ""
    last_sync_at: datetime | None = None
    """When the homeserver last answered a sync."""
    failures: int = 0
    """Requests that failed in a row; 0 while all is well."""
    trouble: Trouble | None = None
    """The last error, also when it is over: compare its time with `last_sync_at`."""
    is_limited: bool = False
    """Whether the homeserver is limiting the account just now."""
    is_cross_signed: bool | None = None
    """Whether the bot's device carries its own identity's signature on the server; None where it was not looked up."""
    allowlist: str = ""
    """Which one the bot runs with, as `allowlist.describe_rooms` words it: other than the settings say, once they were changed."""
    rooms: list[str] | None = None
    """The items of that list; None where it is unset."""
    settings: list[str] = field(default_factory=list)
    """Names of what was set for the bot, wherever; values are not told."""
    aliases: dict[str, str] = field(default_factory=dict)
    """Items of that list that serve no room: "unresolved" while the directory has no answer, "moved" where it names another room now."""
    rooms_served: int = 0
    rooms_denied: int = 0
    unsigned_senders: list[str] = field(default_factory=list)
    """Whose messages wait because they have not signed the device that they write from."""
    counts: dict[str, int] = field(default_factory=dict)
    """By name what else the operator may ask for: withheld_devices, undecryptable, unsigned (of those), quarantined, intake, counters of
    the edge."""


def dump_status(status: Status) -> str:
    """Return the text of the file."""
    content = {"version": VERSION, **dataclasses.asdict(status)}
    return json.dumps(content, ensure_ascii=False, indent=1, default=_write_time) + "\n"


def load_status(text: str) -> Status | None:
    """Return the status that `dump_status` wrote; None where the text is of another version, cut or no status at all."""
    try:
        fields = json.loads(text)
        if fields.pop("version") != VERSION:
            return None
        for name in ("started_at", "written_at", "last_sync_at"):
            fields[name] = _read_time(fields[name])
        for name in ("trouble", "ended_by"):
            if fields.get(name) is not None:
                fields[name] = Trouble(**{**fields[name], "at": _read_time(fields[name]["at"])})
        return Status(**fields)
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def _write_time(value: object) -> str:
    if isinstance(value, datetime):
        return value.isoformat()
    raise TypeError(type(value).__name__)


def _read_time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)
