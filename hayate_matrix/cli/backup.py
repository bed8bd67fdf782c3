"""`hayate-matrix backup` and `restore`: a copy that holds no secret, and a new device that begins with it (STO-7)."""

from __future__ import annotations

import asyncio
import json
import os
import tarfile
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hayate_matrix import __version__
from hayate_matrix.cli.options import Config, Home, Set, read_settings, require_stored, say_again
from hayate_matrix.cli.progress import Progress, patiently
from hayate_matrix.core import status as status_file
from hayate_matrix.errors import AccountError, StoreError
from hayate_matrix.settings.restored import find_missing, list_known, note_restored, tell_remedy

if TYPE_CHECKING:
    from hayate_matrix.settings.sources import Loaded

_FORMAT = 1
_MANIFEST, _KEYS, _HARNESS = "manifest.json", "keys.db", "hayate.db"


def backup(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Where the backup goes; it must not exist.")],
    home: Home = None,
    config: Config = None,
    sets: Set = None,
) -> None:
    """Write a backup of sessions, room keys and identity, also while the bot runs.

    Texts and keys in it are sealed: it opens only with the sealing key (secrets/store.key), which it does not hold.
    Keep that key elsewhere, and a copy of hayate.toml too: settings are not in a backup.

    Example:

        hayate-matrix backup /var/backups/hayate-$(date +%F).tar
    """
    loaded = read_settings(home, config, sets)
    if file.exists():
        raise StoreError(f"{file} exists.", remedy="Name another file; backups are never written over.")
    from hayate_matrix.matrix.account import load_credentials
    from hayate_matrix.matrix.keystore.backup import strip_copy
    from hayate_matrix.store.database.look import copy_database
    from hayate_matrix.store.sealing import Sealer, load_key

    require_stored(loaded)
    credentials = load_credentials(loaded.home / "secrets")
    if credentials is None or not (loaded.home / "matrix.db").exists():
        raise AccountError(f"The home {loaded.home} has no device to back up.", remedy="Log in and run the bot once.")
    sealer = Sealer(load_key(loaded.home / "secrets", loaded.settings.store.key_file, may_make=False))
    manifest: dict[str, Any] = {
        "format": _FORMAT,
        "program": __version__,
        "made_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "user_id": credentials.user_id,
        "key_id": sealer.key_id,
        "settings": _list_set(loaded),
    }
    with tempfile.TemporaryDirectory(dir=file.absolute().parent, prefix=".hayate-backup-") as name:
        folder = Path(name)
        # Keys first: what is handed to the harness meanwhile is then in both copies, never in neither.
        copy_database(loaded.home / "matrix.db", folder / _KEYS, report=Progress("copying room keys and identity"))
        asyncio.run(patiently("the old device's keys to be taken out", asyncio.to_thread(strip_copy, folder / _KEYS)))
        parts = [_MANIFEST, _KEYS]
        if loaded.settings.store.url is None:
            copy_database(loaded.home / "hayate.db", folder / _HARNESS, report=Progress("copying sessions and what is owed"))
            parts.append(_HARNESS)
        else:
            print(
                "The harness's store is a server of its own (store.url): back it up with pg_dump; this file holds room keys and identity."
            )
        (folder / _MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n")
        draft = folder / "backup.tar"
        os.close(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        with tarfile.open(draft, "w") as archive:
            for part in parts:
                archive.add(folder / part, arcname=part)
        draft.rename(file)
    print(f"Wrote {file} ({file.stat().st_size / 1e6:.1f} MB). It opens with the sealing key {sealer.key_id} alone.")
    print(f"Settings are not in it: keep a copy of {loaded.file or 'what you start the bot with'} beside it.")


def _list_set(loaded: Loaded) -> list[str]:
    """Return the names of what is set, here or on the command line of the bot that ran last."""
    try:
        status = status_file.load_status((loaded.home / status_file.FILE_NAME).read_text("utf-8"))
    except (OSError, UnicodeDecodeError):
        status = None
    return sorted({*loaded.places, *(status.settings if status is not None else ())})


def restore(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A file that `hayate-matrix backup` wrote.")],
    homeserver: Annotated[str | None, typer.Option(metavar="URL", help="The homeserver's address (matrix.homeserver).")] = None,
    password_file: Annotated[Path | None, typer.Option(metavar="FILE", help="A file (0600) with the account's password.")] = None,
    home: Home = None,
    config: Config = None,
    sets: Set = None,
) -> None:
    """Begin in an empty home with a backup, as a new device that the same identity signs.

    Put the sealing key into the new home first (secrets/store.key, 0600), or name it with store.key_file, and hayate.toml beside it: the
    bot does not start here until matrix.rooms is said. What was said since the backup was made is history and not answered. Log the old
    device out in any client, if it still exists.

    Example:

        hayate-matrix restore /var/backups/hayate.tar --homeserver https://matrix.example.org --home /var/lib/hayate
    """
    more = {} if homeserver is None else {"matrix.homeserver": (homeserver, "--homeserver")}
    if password_file is not None:
        more["matrix.password_file"] = (str(password_file.absolute()), "--password-file")
    loaded = read_settings(home, config, sets, more=more)
    device_id, were_set = asyncio.run(_restore(file, loaded))
    print(f"Restored as the new device {device_id}.")
    if were_set:
        print(f"Settings are not in a backup. Where it was made these were set: {', '.join(were_set)}.")
    if missing := find_missing(loaded):
        print(f"The bot does not start here until {' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} said.")
        print(tell_remedy(loaded, missing))
    print(say_again("Next: hayate-matrix run"))


async def _restore(file: Path, loaded: Loaded) -> tuple[str, list[str]]:
    from hayate_matrix.app import SystemClock, own_home
    from hayate_matrix.cli.login import ask_for_login
    from hayate_matrix.matrix.account import FILE_NAME
    from hayate_matrix.matrix.keystore.backup import adopt_copy
    from hayate_matrix.store.sealing import Sealer, find_key_place, load_key, sync_folder

    with own_home(loaded.home), tempfile.TemporaryDirectory(dir=loaded.home, prefix=".restore-") as name:
        for part in ("matrix.db", "hayate.db", "secrets/credentials.json"):
            if (loaded.home / part).exists():
                raise StoreError(f"The home {loaded.home} has a {part} already.", remedy="Restore into an empty home: --home DIR")
        folder = Path(name)
        manifest = _unpack(file, folder)
        key_file = loaded.settings.store.key_file
        place = find_key_place(loaded.home / "secrets", key_file)
        if key_file is None and not place.exists():
            remedy = f"Put the sealing key {manifest['key_id']} into {place} (0600) first."
            raise StoreError("The backup is sealed, and its key is not here.", remedy=remedy)
        sealer = Sealer(load_key(loaded.home / "secrets", key_file))
        if sealer.key_id != manifest["key_id"]:
            problem = f"The backup was sealed with the key {manifest['key_id']}; the key here is {sealer.key_id}."
            raise StoreError(problem, remedy="Put the store.key of that time into the home. Nothing was changed.")
        credentials = await ask_for_login(loaded, folder / "secrets", manifest["user_id"])
        if credentials.user_id != manifest["user_id"]:
            raise AccountError(
                f"The backup is of {manifest['user_id']}, the login of {credentials.user_id}.", remedy="Log in to that account."
            )
        now_ms = int(SystemClock().now().timestamp() * 1000)
        adopt_copy(folder / _KEYS, sealer, user_id=credentials.user_id, device_id=credentials.device_id, now_ms=now_ms)
        if (folder / _HARNESS).exists():
            (folder / _HARNESS).rename(loaded.home / "hayate.db")
        (folder / _KEYS).rename(loaded.home / "matrix.db")
        note_restored(loaded.home, manifest["settings"])
        sync_folder(loaded.home)
        # Last: a home with credentials is one that can run; what an interrupted restore left is taken away and begun again.
        (folder / "secrets" / FILE_NAME).rename(loaded.home / "secrets" / FILE_NAME)
    return str(credentials.device_id), manifest["settings"]


def _unpack(file: Path, folder: Path) -> dict[str, Any]:
    """Return the manifest, its files beside it in `folder`."""
    problem = f"{file} is no backup of hayate-matrix."
    try:
        with tarfile.open(file) as archive:
            for part in (_MANIFEST, _KEYS, _HARNESS):
                member = next((found for found in archive.getmembers() if found.name == part and found.isfile()), None)
                source = archive.extractfile(member) if member is not None else None
                if source is None:
                    if part == _HARNESS:
                        continue
                    raise StoreError(problem, remedy="Name a file that `hayate-matrix backup` wrote.")
                with os.fdopen(os.open(folder / part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as target:
                    while chunk := source.read(1 << 20):
                        target.write(chunk)
        manifest = json.loads((folder / _MANIFEST).read_text())
        if manifest["format"] > _FORMAT:
            raise StoreError(f"{file} was written by a newer version ({manifest['program']}).", remedy="Update hayate-matrix first.")
        named = list_known(manifest.get("settings"))
        return {"user_id": str(manifest["user_id"]), "key_id": str(manifest["key_id"]), "settings": named}
    except (OSError, tarfile.TarError, ValueError, KeyError, TypeError) as error:
        raise StoreError(problem, remedy="Name a file that `hayate-matrix backup` wrote.") from error
