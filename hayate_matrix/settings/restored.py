"""A home that came from a backup, which holds no settings: it is not served until those that close the bot are said anew.

Promise: a restore never opens what was closed; the one way to serve every room then is to write `unset`.
How: the backup keeps the names of what was set, never a value; `restore` leaves them in the home, and every start compares.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

from hayate_matrix.errors import SettingsError
from hayate_matrix.settings.words import find_fields

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from hayate_matrix.settings.sources import Loaded

FILE_NAME = "restored.json"
_ALWAYS = "matrix.rooms"
"""Asked for after every restore: it may have been said on a command line that the backup did not see."""
_IF_SET = ("matrix.people", "matrix.inviters", "matrix.ignore", "commands.power", "store.url")
"""Asked for where they were set: left out they would let more people in, or begin another database beside the one that is meant."""


def note_restored(home: Path, names: Iterable[str]) -> None:
    """Keep in `home` which settings were set when the backup was made."""
    with os.fdopen(os.open(home / FILE_NAME, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        file.write(json.dumps({"were_set": sorted(names)}, indent=1) + "\n")
        file.flush()
        os.fsync(file.fileno())


def find_missing(loaded: Loaded) -> list[str]:
    """Return what has to be said before this home is served; nothing for one that was not restored."""
    path = loaded.home / FILE_NAME
    if not path.exists():
        return []
    try:
        were_set = set(json.loads(path.read_text("utf-8"))["were_set"])
    except (OSError, ValueError, KeyError, TypeError):
        were_set = set(_IF_SET)  # closed in doubt
    wanted = (_ALWAYS, *(name for name in _IF_SET if name in were_set))
    return [name for name in wanted if name not in loaded.places]


def check_restored(loaded: Loaded) -> None:
    """Return where nothing is missing.

    Raises:
        SettingsError: the home came from a backup, and a setting that closes the bot has not been said since.
    """
    missing = find_missing(loaded)
    if missing:
        remedy = tell_remedy(loaded, missing)
        problem = f"This home came from a backup, which holds no settings, and {' and '.join(missing)} "
        raise SettingsError(problem + ("is not set here." if len(missing) == 1 else "are not set here."), remedy=remedy)


def tell_remedy(loaded: Loaded, missing: Iterable[str]) -> str:
    """Return how to say what is missing."""
    names = list(missing)
    ways = "--rooms LIST" if names == [_ALWAYS] else "--set NAME=VALUE"
    default = '"unset" serves every room' if _ALWAYS in names else '"unset" means the default'
    return f"Copy the old hayate.toml to {loaded.home / 'hayate.toml'}, or say it with {ways} or as a variable; {default}."


def list_known(names: object) -> list[str]:
    """Return those of `names` that are settings: what a backup says is not taken as it comes."""
    return [name for name in names if isinstance(name, str) and name in find_fields()] if isinstance(names, list) else []
