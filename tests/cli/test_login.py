"""`hayate-matrix login`: how secrets come in, and which device comes out."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from hayate_matrix.app import own_home

if TYPE_CHECKING:
    from pathlib import Path

    from aiohttp import web

    from tests.cli.conftest import Call
    from tests.support.fabricated import FabricatedHomeserver

BOT = "@bot:fab.test"
PASSWORD = "geheim-passwort"


def write_secret(path: Path, text: str) -> Path:
    path.write_text(text + "\n")
    path.chmod(0o600)
    return path


@pytest.mark.requirement("ACC-1", "SEC-3")
@pytest.mark.parametrize("way", ["file", "environment", "settings", "prompt"])
def test_a_password_comes_from_file_environment_or_terminal(
    call: Call, server: FabricatedHomeserver, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """Each way logs the bot in and none of them shows the password."""
    server.passwords[BOT] = PASSWORD
    options = ["--homeserver", server.url, "--user", BOT]
    if way == "file":
        options += ["--password-file", str(write_secret(tmp_path / "password", PASSWORD))]
    elif way == "environment":
        monkeypatch.setenv("HAYATE_MATRIX__PASSWORD", PASSWORD)
    elif way == "settings":
        home.mkdir(mode=0o700)
        write_secret(home / "password", PASSWORD)
        (home / "hayate.toml").write_text('[matrix]\npassword_file = "password"\n')
    else:
        monkeypatch.setattr("sys.stdin.isatty", lambda: True)
        monkeypatch.setattr("getpass.getpass", lambda *_, **__: PASSWORD)
        monkeypatch.setattr("click.termui.hidden_prompt_func", lambda *_: PASSWORD)
        monkeypatch.setattr("typer._click.termui.hidden_prompt_func", lambda *_: PASSWORD, raising=False)
    outcome = call("login", *options)
    assert outcome.code == 0, outcome.err
    kept = json.loads((home / "secrets" / "credentials.json").read_text())
    assert kept["user_id"] == BOT
    assert kept["device_id"] in outcome.out
    assert PASSWORD not in outcome.out + outcome.err
    assert kept["access_token"] not in outcome.out + outcome.err


@pytest.mark.requirement("ACC-1")
@pytest.mark.parametrize("way", ["file", "environment"])
def test_a_token_comes_from_a_file_or_the_environment(
    call: Call, server: FabricatedHomeserver, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """User and device are those of the token."""
    token = server.login(BOT, "TOKENDEVICE").access_token
    options = ["--homeserver", server.url, "--user", BOT]
    if way == "file":
        options += ["--token-file", str(write_secret(tmp_path / "token", token))]
    else:
        monkeypatch.setenv("HAYATE_MATRIX__ACCESS_TOKEN", token)
    assert call("login", *options).code == 0
    assert json.loads((home / "secrets" / "credentials.json").read_text())["device_id"] == "TOKENDEVICE"


@pytest.mark.requirement("ACC-1", "SEC-3")
def test_without_a_terminal_nothing_is_asked(call: Call, server: FabricatedHomeserver) -> None:
    """In a service the command says which ways there are instead of hanging."""
    outcome = call("login", "--homeserver", server.url, "--user", BOT)
    assert outcome.code == 78
    assert "--password-file" in outcome.err
    assert "HAYATE_MATRIX__PASSWORD" in outcome.err


@pytest.mark.requirement("ACC-1", "SEC-3")
def test_a_password_file_that_others_can_read_is_refused(call: Call, server: FabricatedHomeserver, tmp_path: Path) -> None:
    """A secret that is open already is not used, and the text says how to close it."""
    path = write_secret(tmp_path / "password", PASSWORD)
    path.chmod(0o644)
    outcome = call("login", "--homeserver", server.url, "--user", BOT, "--password-file", str(path))
    assert outcome.code == 78
    assert f"chmod 600 {path}" in outcome.err


@pytest.mark.requirement("ACC-1")
def test_a_second_login_needs_no_address_and_keeps_the_device(
    call: Call, server: FabricatedHomeserver, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the first login kept is enough for the next."""
    server.passwords[BOT] = PASSWORD
    monkeypatch.setenv("HAYATE_MATRIX__PASSWORD", PASSWORD)
    assert call("login", "--homeserver", server.url, "--user", BOT).code == 0
    before = json.loads((home / "secrets" / "credentials.json").read_text())
    assert call("login").code == 0
    after = json.loads((home / "secrets" / "credentials.json").read_text())
    assert after["device_id"] == before["device_id"]
    assert after["access_token"] != before["access_token"]


@pytest.mark.requirement("E2E-8", "ACC-1")
def test_a_home_takes_no_other_account(call: Call, server: FabricatedHomeserver, monkeypatch: pytest.MonkeyPatch) -> None:
    """A home belongs to the account that was first logged in to it."""
    server.passwords[BOT] = PASSWORD
    monkeypatch.setenv("HAYATE_MATRIX__PASSWORD", PASSWORD)
    assert call("login", "--homeserver", server.url, "--user", BOT).code == 0
    outcome = call("login", "--user", "@other:fab.test")
    assert outcome.code == 78
    assert "belongs to @bot:fab.test" in outcome.err


@pytest.mark.requirement("STO-6")
def test_a_login_beside_a_running_bot_is_refused_with_75(call: Call, server: FabricatedHomeserver, home: Path) -> None:
    """The token of a running bot is not changed under it."""
    with own_home(home):
        outcome = call("login", "--homeserver", server.url, "--user", BOT)
    assert outcome.code == 75
    assert "in use by process" in outcome.err


@pytest.mark.parametrize("missing", ["homeserver", "user"])
def test_what_a_login_lacks_is_named(call: Call, server: FabricatedHomeserver, missing: str) -> None:
    """Each thing that is needed is asked for by its option."""
    options = {"homeserver": ["--user", BOT], "user": ["--homeserver", server.url]}[missing]
    outcome = call("login", *options)
    assert outcome.code == 78
    assert f"matrix.{missing} is unset. Say --{missing}" in outcome.err


@pytest.mark.requirement("NEW-4", "NEW-2")
def test_a_login_at_a_homeserver_that_hangs_says_what_it_waits_for(
    call: Call, server: FabricatedHomeserver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody looks at a silent terminal for half a minute, and what is said is an address and not a name out of the code."""
    server.passwords[BOT] = PASSWORD
    monkeypatch.setenv("HAYATE_MATRIX__PASSWORD", PASSWORD)
    monkeypatch.setattr("hayate_matrix.cli.progress._SILENCE_S", 0.05)

    async def dawdle(_request: web.Request, _body: Any) -> None:
        await asyncio.sleep(0.3)

    server.handles("GET", "*/login", dawdle)
    outcome = call("login", "--homeserver", server.url, "--user", BOT)
    assert outcome.code == 0, outcome.err
    assert f"waiting for {server.url} (0 s) ...\n" in outcome.err
    assert "account." not in outcome.err


@pytest.mark.requirement("NEW-2")
def test_a_homeserver_that_is_not_there_is_told_in_one_line(call: Call, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The address, the reason and what to look at; nothing is kept, and no next try is announced where none follows."""
    monkeypatch.setenv("HAYATE_MATRIX__PASSWORD", "a password")
    outcome = call("login", "--homeserver", "http://127.0.0.1:1", "--user", "@bot:fab.test")
    assert outcome.code == 69
    assert outcome.err.startswith("hayate-matrix: http://127.0.0.1:1 can't be reached: ")
    assert len(outcome.err.splitlines()) == 1
    assert not (home / "secrets" / "credentials.json").exists()
