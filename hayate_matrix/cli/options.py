"""The options that all commands share, and the settings that they lead to."""

from __future__ import annotations

import re
import shlex
from contextvars import ContextVar
from pathlib import Path
from typing import Annotated

import typer

from hayate_matrix import log
from hayate_matrix.errors import SettingsError, StoreError
from hayate_matrix.settings.sources import Loaded, load

SHARED = "Settings"
"""Heading of these options in every --help."""

Home = Annotated[
    Path | None,
    typer.Option(
        "--home", metavar="DIR", help="Where all state is kept (HAYATE_HOME; else in your data directory).", rich_help_panel=SHARED
    ),
]
Config = Annotated[
    Path | None,
    typer.Option(
        "--config", metavar="FILE", help="The settings file (HAYATE_CONFIG; else hayate.toml in the home).", rich_help_panel=SHARED
    ),
]
Rooms = Annotated[
    str | None,
    typer.Option(
        "--rooms",
        metavar="LIST",
        help="matrix.rooms: items separated by commas; '' is the empty list, which denies all rooms; 'unset' serves every room.",
        rich_help_panel=SHARED,
    ),
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="NAME=VALUE", help="Any other setting, e.g. --set log.level=debug; may be repeated.", rich_help_panel=SHARED
    ),
]

_given: ContextVar[str] = ContextVar("given", default="")
"""`--home` and `--config` of this command line, as they are typed again."""
_COMMAND = re.compile(
    r"\bhayate-matrix (?:config (?:show|check)|run|login|doctor|backup|restore|export|reseal)\b(?! --home\b|` wr(?:ote|ites))"
)


def say_again(text: str) -> str:
    """Return `text`, in which every command is the one to type: with the home and the file that were named here."""
    return _COMMAND.sub(lambda found: found[0] + _given.get(), text)


def read_settings(
    home: Path | None,
    config: Path | None,
    sets: list[str] | None,
    rooms: str | None = None,
    *,
    more: dict[str, tuple[str, str]] | None = None,
) -> Loaded:
    """Return the settings in force and let the log obey them.

    Raises:
        SettingsError: some can't be used.
    """
    named = (("--home", home), ("--config", config))
    _given.set("".join(f" {option} {shlex.quote(str(path))}" for option, path in named if path is not None))
    options = dict(more or {})
    for text in sets or []:
        name, equals, value = text.partition("=")
        if not equals:
            raise SettingsError(f"--set {name!r} has no value.", allowed="Allowed: --set NAME=VALUE, for example --set log.level=debug.")
        options[name.strip()] = (value, f"--set {name.strip()}")
    if rooms is not None:
        options["matrix.rooms"] = (rooms, "--rooms")
    loaded = load(home=home, file=config, options=options)
    log.configure(loaded.settings.log.level, loaded.settings.log.format)
    for secret in (loaded.settings.matrix.password, loaded.settings.matrix.access_token):
        if secret is not None:
            log.hide(secret.get_secret_value())
    return loaded


def require_stored(loaded: Loaded) -> None:
    """Return where the bot has stored something in this home; asked before anything is read, so that nothing is made either.

    Raises:
        StoreError: there is nothing.
    """
    names = ["matrix.db", "hayate.db"]
    if loaded.settings.store.url is not None:  # the home holds the key then, and not always a database
        names += ["secrets/store.key", "secrets/credentials.json"]
    if not any((loaded.home / name).exists() for name in names):
        raise StoreError(tell_nothing(loaded.home), remedy="Log in and run the bot once, or name another home: --home DIR")


def tell_nothing(home: Path) -> str:
    """Return the one sentence for a home that is new, or not the one that was meant."""
    return f"There is nothing in {home} yet."
