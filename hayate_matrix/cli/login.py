"""`hayate-matrix login`: makes the bot's device, once, or logs the same device in again."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hayate_matrix import log
from hayate_matrix.cli.options import Config, Home, Set, read_settings, say_again
from hayate_matrix.cli.progress import patiently
from hayate_matrix.errors import AccountError, SettingsError
from hayate_matrix.settings.sources import read_secret

if TYPE_CHECKING:
    from hayate_matrix.matrix.account import Credentials
    from hayate_matrix.settings.sources import Loaded


def login(
    user: Annotated[str | None, typer.Option(metavar="ID", help="The account, e.g. @bot:example.org (matrix.user).")] = None,
    homeserver: Annotated[
        str | None, typer.Option(metavar="URL", help="Its homeserver, e.g. https://matrix.example.org (matrix.homeserver).")
    ] = None,
    password_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A file (0600) with the password (matrix.password_file).")
    ] = None,
    token: Annotated[bool, typer.Option("--token", help="Log in with an access token; it is asked for, and not shown.")] = False,
    token_file: Annotated[Path | None, typer.Option(metavar="FILE", help="A file (0600) with an access token.")] = None,
    home: Home = None,
    config: Config = None,
    sets: Set = None,
) -> None:
    """Log the bot in and keep its device.

    Without a file, HAYATE_MATRIX__PASSWORD or HAYATE_MATRIX__ACCESS_TOKEN, the password is asked for and not shown.
    Where the home has a device already, that same device is logged in again; stop the bot first.

    Examples:

        hayate-matrix login --homeserver https://matrix.example.org --user @bot:example.org

        hayate-matrix login --token-file /run/secrets/token --homeserver https://matrix.example.org
    """
    given = {"matrix.user": (user, "--user"), "matrix.homeserver": (homeserver, "--homeserver")}
    more = {name: (text, option) for name, (text, option) in given.items() if text is not None}
    if password_file is not None:
        more["matrix.password_file"] = (str(password_file.absolute()), "--password-file")
    loaded = read_settings(home, config, sets, more=more)
    if loaded.settings.log.level != "debug":
        log.configure("error")  # what goes wrong ends the command, and is told once
    credentials = asyncio.run(_log_in(loaded, is_token=token, token_file=token_file))
    print(say_again(f"Logged in as {credentials.user_id}, device {credentials.device_id}. Next: hayate-matrix run"))


async def _log_in(loaded: Loaded, *, is_token: bool, token_file: Path | None) -> Credentials:
    from hayate_matrix.app import own_home
    from hayate_matrix.matrix.account import load_credentials

    secrets_dir = loaded.home / "secrets"
    with own_home(loaded.home):
        before = load_credentials(secrets_dir)
        user = loaded.settings.matrix.user or (before.user_id if before else None)
        if before is not None and user != before.user_id:
            problem = f"The home {loaded.home} belongs to {before.user_id}, device {before.device_id}, not to {user}."
            raise AccountError(problem, remedy="Use another home: --home DIR")
        access_token = _find_token(loaded, is_asked=is_token, file=token_file)
        return await ask_for_login(loaded, secrets_dir, user, before=before, access_token=access_token)


async def ask_for_login(
    loaded: Loaded, secrets_dir: Path, user: str | None, *, before: Credentials | None = None, access_token: str | None = None
) -> Credentials:
    """Log in by token or password, keep the credentials in `secrets_dir` and return them; without `before` as a new device."""
    from hayate_matrix.app import SystemClock
    from hayate_matrix.matrix.account import log_in_with_password, log_in_with_token
    from hayate_matrix.matrix.http import Http

    matrix = loaded.settings.matrix
    homeserver = matrix.homeserver or (before.homeserver if before else None)
    if homeserver is None:
        raise SettingsError("matrix.homeserver is unset.", remedy="Say --homeserver https://matrix.example.org")
    http = Http(homeserver, SystemClock())
    try:
        if access_token is not None:
            return await patiently(homeserver, log_in_with_token(http, secrets_dir, access_token, expected=before))
        if user is None:
            raise SettingsError("matrix.user is unset.", remedy="Say --user @bot:example.org")
        device_id = before.device_id if before else None
        password = _find_password(loaded, user)
        work = log_in_with_password(http, secrets_dir, user, password, device_name=matrix.device_name, device_id=device_id)
        return await patiently(homeserver, work)
    finally:
        await http.close()


def _find_token(loaded: Loaded, *, is_asked: bool, file: Path | None) -> str | None:
    if is_asked:
        return _ask("Access token")
    return read_secret(None if file else loaded.settings.matrix.access_token, file, name="--token-file")


def _find_password(loaded: Loaded, user: str) -> str:
    matrix = loaded.settings.matrix
    password = read_secret(matrix.password, matrix.password_file, name="matrix.password_file")
    return password if password is not None else _ask(f"Password of {user}")


def _ask(what: str) -> str:
    if not sys.stdin.isatty():
        remedy = "Use --password-file, --token-file, HAYATE_MATRIX__PASSWORD or HAYATE_MATRIX__ACCESS_TOKEN."
        raise SettingsError(f"{what}: there is no terminal to ask at.", remedy=remedy)
    return str(typer.prompt(what, hide_input=True))
