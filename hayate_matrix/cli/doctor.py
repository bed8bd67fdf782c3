"""`hayate-matrix doctor`: looks at everything that can be wrong and says what to do.

Promise: it changes nothing and holds no lock, so it may be run at any time, beside a running bot too.
How: each check gives findings; what only the running bot knows is read from the file that it writes (core/status).
"""

from __future__ import annotations

import asyncio
import datetime as dt
import shutil
import stat
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer

from hayate_matrix import log
from hayate_matrix.cli.options import Config, Home, Rooms, Set, read_settings, say_again, tell_nothing
from hayate_matrix.core import status as status_file
from hayate_matrix.core.allowlist import describe_rooms
from hayate_matrix.errors import HayateError, StopError
from hayate_matrix.settings.restored import find_missing, tell_remedy

if TYPE_CHECKING:
    from hayate_matrix.settings.sources import Loaded

Level = Literal["ok", "note", "fault"]
_OPEN_TO_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_SYNC_OVERDUE_S = 90.0
"""Three long polls of 30 s: past that the bot's own watchdog counts it as unhealthy too (ACC-2)."""
_SHOWN_ITEMS = 10
_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the answer; `remedy` says what to do about a fault or a note."""

    level: Level
    what: str
    text: str
    remedy: str = ""


def doctor(home: Home = None, config: Config = None, rooms: Rooms = None, sets: Set = None) -> None:
    """Check homeserver, account, device, allowlist, store, keys and disk, and say what to do for each that fails.

    It changes nothing and may be run while the bot runs. The exit code is 1 where something is wrong.

    Example:

        hayate-matrix doctor
    """
    loaded = read_settings(home, config, sets, rooms)
    if loaded.settings.log.level != "debug":
        log.configure("error")  # what goes wrong is told as a finding
    faults = 0
    for finding in check_all(loaded):
        faults += finding.level == "fault"
        print(f"{finding.level:<5}  {finding.what:<11}  {say_again(finding.text)}")
        if finding.remedy:
            print(f"{'':<20}{say_again(finding.remedy)}")
        sys.stdout.flush()
    print("Nothing is wrong." if not faults else f"{faults} {'thing is' if faults == 1 else 'things are'} wrong.")
    if faults:
        raise typer.Exit(1)


def check_all(loaded: Loaded) -> Iterator[Finding]:
    """Yield what is found, in the order in which things depend on each other."""
    yield Finding("ok", "settings", f"{loaded.file or 'no file'}; {len(loaded.places)} set, the others have their defaults")
    yield from check_home(loaded.home)
    yield from check_disk(loaded)
    yield from check_key_file(loaded)
    yield from check_store(loaded)
    yield from check_bot(loaded.home, dt.datetime.now(dt.UTC))
    yield from check_allowlist(loaded)
    from hayate_matrix.cli.remote import check_homeserver

    yield from asyncio.run(check_homeserver(loaded))


def check_home(home: Path) -> Iterator[Finding]:
    """Look at the home's permissions (STO-1)."""
    if not home.is_dir():
        text = f"{home} is no folder" if home.exists() else tell_nothing(home).rstrip(".")
        yield Finding("fault", "home", text, "Run `hayate-matrix login`, which makes it, or name another: --home DIR")
        return
    open_ones = [path for path in (home, *home.rglob("*")) if not path.is_symlink() and path.stat().st_mode & _OPEN_TO_OTHERS]
    if open_ones:
        text = f"other users can get at {open_ones[0]}" + (f" and {len(open_ones) - 1} more" if len(open_ones) > 1 else "")
        yield Finding("fault", "home", text, f"Run: chmod -R go= {home}")
    else:
        yield Finding("ok", "home", f"{home}, closed to others")


def check_disk(loaded: Loaded) -> Iterator[Finding]:
    """Look at the space that is left (STO-11)."""
    place = loaded.home
    while not place.exists() and place != place.parent:
        place = place.parent
    free, low = shutil.disk_usage(place).free, loaded.settings.store.low_water_bytes
    text = f"{free // _MIB:,} MiB free; {low // _MIB:,} MiB should be, and below a quarter of that nothing is taken in"
    if free < low:
        yield Finding("fault", "disk", text, f"Free some space on the disk of {place}, or lower store.low_water_bytes.")
    else:
        yield Finding("ok", "disk", text)


def check_key_file(loaded: Loaded) -> Iterator[Finding]:
    """Look at the sealing key, without making one."""
    from hayate_matrix.store.sealing import find_key_place, load_key

    if not loaded.settings.store.seal:
        yield Finding("note", "sealing", "off: texts are stored readable", "Set store.seal = true to change that for new rows.")
        return
    named = loaded.settings.store.key_file
    path = find_key_place(loaded.home / "secrets", named)
    if named is None and not path.exists():
        if _has_databases(loaded.home):
            remedy = "Put it back from where you keep its copy: the bot does not start without it, and a new key can't open what is stored."
            yield Finding("fault", "sealing", f"{path} is gone, and what is stored was sealed with it", remedy)
        else:
            yield Finding("note", "sealing", f"{path} is not there yet; the first start makes it")
        return
    try:
        load_key(path.parent, path, may_make=False)
    except StopError as error:
        yield _from_error("sealing", error)
    else:
        yield Finding(
            "ok", "sealing", f"on, with the key of {path}", "Keep a copy of that file elsewhere: without it nothing stored can be read."
        )


def check_store(loaded: Loaded) -> Iterator[Finding]:
    """Look at the harness's database and at what it owes."""
    from hayate_matrix.store.database.look import look_at

    try:
        look = look_at(loaded.settings.store.url or loaded.home / "hayate.db")
    except StopError as error:
        yield _from_error("store", error)
        return
    if look.schema is None:
        yield Finding("note", "store", f"{look.where} is not there yet; the first start makes it")
        return
    key_id = _find_key_id(loaded)
    if look.key_id is not None and key_id != look.key_id:
        text = f"{look.where} is sealed with the key {look.key_id}; the key here is {key_id or 'missing'}"
        yield Finding("fault", "store", text, "Put the store.key back that belongs to it: without it nothing stored can be read.")
        return
    waiting = look.inbox.get("queued", 0) + look.inbox.get("running", 0)
    yield Finding("ok", "store", f"{look.where}, schema {look.schema}, {_count(waiting, 'request')} waiting")
    held, uncertain = look.outbox.get("held", 0), look.outbox.get("uncertain", 0)
    text = f"{look.outbox.get('pending', 0)} owed, {held} held, {uncertain} uncertain"
    if uncertain:
        remedy = "Uncertain: it can't be known whether the room has them. Look into the rooms and tell the people what is missing."
        yield Finding("fault", "outbox", text, remedy)
    elif held:
        yield Finding("note", "outbox", text, "Held ones go out when their room is allowed again and the bot may speak there.")
    else:
        yield Finding("ok", "outbox", text)


def _has_databases(home: Path) -> bool:
    from hayate_matrix.app import has_databases

    return has_databases(home)


def _is_owned(home: Path) -> bool:
    from hayate_matrix.app import HOME_LOCK
    from hayate_matrix.store.database.locks import is_owned

    return is_owned(home / HOME_LOCK)


def _find_key_id(loaded: Loaded) -> str | None:
    """Return the id of the sealing key, without making one; None where it is missing or can't be used."""
    from hayate_matrix.store.sealing import Sealer, find_key_place, load_key

    path = find_key_place(loaded.home / "secrets", loaded.settings.store.key_file)
    try:
        return Sealer(load_key(path.parent, path, may_make=False)).key_id
    except StopError:
        return None


def read_status(home: Path) -> status_file.Status | None:
    """Return what the bot last wrote; None where there is nothing, or nothing that can be read."""
    try:
        return status_file.load_status((home / status_file.FILE_NAME).read_text("utf-8"))
    except (OSError, UnicodeDecodeError):
        return None


def check_bot(home: Path, now: dt.datetime) -> Iterator[Finding]:
    """Read what the bot last said about itself."""
    status = read_status(home)
    if status is None:
        yield Finding("note", "bot", "has not been run in this home yet", "Start it: hayate-matrix run")
        return
    age_s = (now - status.written_at).total_seconds()
    is_owned = _is_owned(home)
    trouble = f"{status.trouble.code}: {status.trouble.text}" if status.trouble else ""
    limited = ", limited by the homeserver just now" if status.is_limited else ""
    synced = f"last sync {_tell_age(now, status.last_sync_at)}" if status.last_sync_at else "no sync yet"
    if status.is_stopped and status.ended_by is not None:
        text = f"stopped {_tell_age(now, status.written_at)} ({status.ended_by.code}): {status.ended_by.text}"
        yield Finding("fault", "bot", text, "Do what it says, then start it again: hayate-matrix run")
    elif status.is_stopped:
        yield Finding(
            "note", "bot", f"is not running; it stopped {_tell_age(now, status.written_at)}", trouble and f"Its last error: {trouble}"
        )
    elif not is_owned:
        text = f"is not running: process {status.pid} was killed; it last wrote its status {_tell_age(now, status.written_at)}"
        yield Finding("fault", "bot", text, "Start it again, it goes on where it was: hayate-matrix run")
    elif age_s > status_file.STALE_S:
        remedy = f"See what process {status.pid} logs; if nothing moves any more, kill it and start it again: nothing is lost."
        yield Finding("fault", "bot", f"hangs: it last wrote its status {_tell_age(now, status.written_at)}", remedy)
    elif status.failures:
        yield Finding(
            "fault",
            "bot",
            f"gets no answer from the homeserver ({_count(status.failures, 'time')} so far), {synced}: {trouble}",
            _advise(status),
        )
    elif (now - (status.last_sync_at or status.started_at)).total_seconds() > _SYNC_OVERDUE_S:
        remedy = _advise_limited() if status.is_limited else "See its log; it restarts its sync by itself."
        yield Finding("fault", "bot", f"runs as process {status.pid}, {synced}{limited}", remedy)
    else:
        yield Finding("ok", "bot", f"runs as process {status.pid}, {synced}{limited}")
    yield from _check_counts(status)


def _check_counts(status: status_file.Status) -> Iterator[Finding]:
    counts = status.counts
    yield Finding("ok", "rooms", f"{status.rooms_served} served, {status.rooms_denied} denied")
    for alias, trouble in status.aliases.items():
        if trouble == "moved":
            remedy = "Write the id of the room that you mean into matrix.rooms in its place, and start the bot again."
            yield Finding("fault", "alias", f"{alias} names another room than before; neither is served", remedy)
        else:
            remedy = (
                "The bot tries again every minute, and joins then if it is invited. Give the room this address, or correct matrix.rooms."
            )
            yield Finding("note", "alias", f"{alias} can't be resolved yet; no room is served for it", remedy)
    withheld = counts.get("withheld_devices", 0)
    if withheld:
        remedy = 'Their owners have to verify them in their client; or set matrix.devices = "all".'
        yield Finding("note", "devices", f"{withheld} get no room keys, because their owners have not cross-signed them", remedy)
    else:
        yield Finding("ok", "devices", "none is left without room keys")
    unsigned = counts.get("unsigned", 0)
    if unread := counts.get("undecryptable", 0) - unsigned:
        text = (
            f"{_count(unread, 'message')} could not be decrypted yet; {'it is' if unread == 1 else 'they are'} answered when the key comes"
        )
        yield Finding("note", "unread", text, "Whoever wrote it can send it again.")
    if unsigned:
        whose = ", ".join(status.unsigned_senders[:_SHOWN_ITEMS])
        text = f"{_count(unsigned, 'message')} not heard: {whose or 'somebody'} wrote from a session without its owner's signature"
        remedy = 'Heard as soon as its owner verifies that session with another one or the recovery key; or set matrix.devices = "all".'
        yield Finding("note", "unverified", text, remedy)
    if quarantined := counts.get("quarantined", 0):
        text = f"{_count(quarantined, 'malformed or hostile event')} set aside"
        yield Finding("note", "quarantine", text, "Nothing needs to be done; they changed nothing.")
    if intake := counts.get("intake", 0):
        yield Finding("ok", "intake", f"{_count(intake, 'event')} received and not yet taken up")
    others = [f"{name} {count}" for name, count in sorted(counts.items()) if count and name not in _TOLD_COUNTS]
    if others:
        yield Finding("ok", "counted", "since the home was made, of use in a report of a fault: " + ", ".join(others))


_TOLD_COUNTS = frozenset({"withheld_devices", "undecryptable", "unsigned", "quarantined", "intake"})
"""Counts that have a line of their own."""


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def check_allowlist(loaded: Loaded) -> Iterator[Finding]:
    """Say which allowlist is in force (ROOM-1)."""
    matrix = loaded.settings.matrix
    text = f"matrix.rooms is {describe_rooms(matrix.rooms)}"
    if matrix.rooms:
        text += ": " + ", ".join(matrix.rooms[:_SHOWN_ITEMS])
        text += f" and {len(matrix.rooms) - _SHOWN_ITEMS} more" if len(matrix.rooms) > _SHOWN_ITEMS else ""
    text += f" ({loaded.places.get('matrix.rooms', 'default')})"
    status = read_status(loaded.home)
    if missing := find_missing(loaded):
        lacking = f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not said"
        text = f"the home came from a backup, and {lacking}: the bot does not start"
        yield Finding("fault", "allowlist", text, tell_remedy(loaded, missing))
    elif status is not None and _is_owned(loaded.home) and _is_another_list(status, matrix.rooms):
        yield Finding("fault", "allowlist", text, _advise_list(loaded, status))
    else:
        yield Finding("ok" if matrix.rooms is None or matrix.rooms else "note", "allowlist", text)
    people = "anyone in a served room" if matrix.people is None else ", ".join(matrix.people) or "nobody"
    if matrix.inviters is not None:
        inviters = ", ".join(matrix.inviters) or "nobody"
    else:
        inviters = "the accounts of its own server" if matrix.people is None else people
    yield Finding("ok", "people", f"may speak: {people}; may invite: {inviters}")


def _is_another_list(status: status_file.Status, rooms: tuple[str, ...] | None) -> bool:
    if status.allowlist != describe_rooms(rooms):
        return bool(status.allowlist)
    return status.rooms is not None and rooms is not None and set(status.rooms) != set(rooms)


def _advise_list(loaded: Loaded, status: status_file.Status) -> str:
    """Say which list is in force; to start the bot again is advised only where that opens no room."""
    rooms = loaded.settings.matrix.rooms
    given = f"The running bot was given {status.allowlist}"
    if status.rooms:
        given += ": " + ", ".join(status.rooms[:_SHOWN_ITEMS])
    if rooms is not None and (status.rooms is None or set(rooms) < set(status.rooms)):
        return f"{given}. To let this shorter one take effect, start it again with the same settings."
    return (
        f"{given}. These settings serve other rooms: give doctor the same --rooms as the bot, or write its list into "
        f"{loaded.file or loaded.home / 'hayate.toml'}, so that its next start has it too."
    )


def _advise_limited() -> str:
    return "The homeserver limits the account; its administrator can raise the limit. Nothing is lost meanwhile."


def _advise(status: status_file.Status) -> str:
    code = status.trouble.code if status.trouble else ""
    if code == "rate-limited":
        return _advise_limited()
    return "See to the homeserver and to what stands before it. The bot goes on by itself when it answers again; nothing is lost meanwhile."


def _tell_age(now: dt.datetime, then: dt.datetime) -> str:
    seconds = max(0, int((now - then).total_seconds()))
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length} {unit} ago"
    return f"{seconds} s ago"


def _from_error(what: str, error: HayateError) -> Finding:
    return Finding("fault", what, error.problem.rstrip("."), " ".join(part for part in (error.allowed, error.remedy) if part))
