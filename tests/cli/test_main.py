"""Commands, their texts and their exit codes."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from hayate_matrix import __version__, app
from hayate_matrix.errors import (
    AccountError,
    EncryptionError,
    HayateError,
    HomeBusyError,
    HomeserverDown,
    MatrixError,
    SettingsError,
    StoreError,
)

if TYPE_CHECKING:
    from pathlib import Path

    from hayate_matrix.settings.sources import Loaded
    from tests.cli.conftest import Call
    from tests.support.fabricated import FabricatedHomeserver


@pytest.mark.requirement("CFG-1")
@pytest.mark.parametrize(
    ("error", "code"),
    [
        (SettingsError("It is wrong."), 78),
        (AccountError("It is wrong."), 78),
        (EncryptionError("It is wrong."), 78),
        (HomeBusyError("It is wrong."), 75),
        (StoreError("It is wrong."), 74),
        (HomeserverDown("It is wrong."), 69),
        (MatrixError("M_FORBIDDEN", "It is wrong.", status=403), 70),
        (RuntimeError("It is wrong."), 70),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else str(value),
)
def test_each_error_becomes_its_text_and_its_exit_code(call: Call, monkeypatch: pytest.MonkeyPatch, error: Exception, code: int) -> None:
    """The operator sees one text and no traceback, a program one number."""

    async def fail(_loaded: object) -> None:
        raise error

    monkeypatch.setattr(app, "run", fail)
    outcome = call("run")
    assert outcome.code == code
    assert "It is wrong." in outcome.err
    assert "Traceback" not in outcome.err
    if not isinstance(error, HayateError):
        assert "RuntimeError" in outcome.err


def test_a_traceback_is_shown_where_debugging_was_asked_for(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """With log.level=debug whoever mends the program sees where."""

    async def fail(_loaded: object) -> None:
        message = "It is wrong."
        raise RuntimeError(message)

    monkeypatch.setattr(app, "run", fail)
    assert "Traceback" in call("run", "--set", "log.level=debug").err


@pytest.mark.requirement("ROOM-1", "CFG-1")
@pytest.mark.parametrize(
    ("options", "rooms"),
    [
        ([], None),
        (["--rooms", "unset"], None),
        (["--rooms", ""], ()),
        (["--rooms", "#ops:b.org,dm:@ann:b.org"], ("#ops:b.org", "dm:@ann:b.org")),
        (["--set", "matrix.rooms="], ()),
    ],
    ids=["not said", "unset", "empty", "a list", "empty by --set"],
)
def test_the_command_line_tells_unset_empty_and_filled_rooms_apart(
    call: Call, monkeypatch: pytest.MonkeyPatch, options: list[str], rooms: tuple[str, ...] | None
) -> None:
    """What reaches the bot is what was written, in each of the three."""
    seen: list[object] = []

    async def note(loaded: Loaded) -> None:
        seen.append(loaded.settings.matrix.rooms)

    monkeypatch.setattr(app, "run", note)
    assert call("run", *options).code == 0
    assert seen == [rooms]


@pytest.mark.requirement("CFG-2", "SEC-3")
def test_config_show_prints_each_value_and_its_place_without_secrets(call: Call, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every setting has a line; one that is secret is masked."""
    home.mkdir(mode=0o700)
    (home / "hayate.toml").write_text('[matrix]\nrooms = ["#ops:b.org"]\npassword = "geheim-1"\n')
    monkeypatch.setenv("HAYATE_STORE__URL", "postgresql://bot:geheim-2@db/x")
    outcome = call("config", "show", "--set", "harness.parallel_turns=7")
    rows = {line.split(" = ")[0].strip(): line for line in outcome.out.splitlines() if " = " in line}
    assert outcome.code == 0
    assert "# hayate.toml, line 2" in rows["matrix.rooms"]
    assert '["#ops:b.org"]' in rows["matrix.rooms"]
    assert "# --set harness.parallel_turns" in rows["harness.parallel_turns"]
    assert "# HAYATE_STORE__URL" in rows["store.url"]
    assert "# default" in rows["matrix.people"]
    assert "geheim" not in outcome.out + outcome.err
    assert str(home) in outcome.out


@pytest.mark.requirement("CFG-2")
def test_config_check_lists_every_fault_and_ends_with_78(call: Call, home: Path) -> None:
    """A file is checked without starting anything."""
    home.mkdir()
    path = home / "other.toml"
    path.write_text('[matrix]\nroms = []\nrooms = ["ops"]\n')
    outcome = call("config", "check", "--config", str(path))
    assert outcome.code == 78
    assert "matrix.roms" in outcome.err
    assert "matrix.rooms, item 1: 'ops' is no room" in outcome.err
    assert "other.toml, line 3" in outcome.err
    path.write_text('[matrix]\nrooms = ["#ops:b.org"]\n')
    outcome = call("config", "check", "--config", str(path))
    assert (outcome.code, "can be used" in outcome.out) == (0, True)


@pytest.mark.parametrize(
    "arguments", [["--help"], ["run", "--help"], ["login", "--help"], ["doctor", "--help"], ["config", "show", "-h"], ["-h"]]
)
def test_help_is_there_with_an_example(call: Call, arguments: list[str]) -> None:
    """Each command explains itself."""
    outcome = call(*arguments)
    assert outcome.code == 0
    assert "hayate-matrix" in outcome.out


@pytest.mark.requirement("NEW-2", "SES-4", "STO-8")
@pytest.mark.parametrize("command", [["export"], ["backup", "x.tar"], ["reseal"], ["doctor"]], ids=lambda command: command[0])
@pytest.mark.parametrize("is_there", [False, True], ids=["new", "another folder"])
def test_a_wrong_home_is_told_in_one_sentence_and_not_made(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str], *, is_there: bool
) -> None:
    """Whoever mistypes `--home` reads that there is nothing, not that a key is gone; the folder is as it was, or still not there."""
    monkeypatch.chdir(tmp_path)
    other = tmp_path / "other"
    if is_there:
        other.mkdir(mode=0o700)
    outcome = call(*command, "--home", str(other))
    told = outcome.out + outcome.err
    assert outcome.code == (1 if command == ["doctor"] else 74)
    assert f"There is nothing in {other} yet" in told or (is_there and command == ["doctor"])
    assert "gone" not in told
    assert "key_file" not in told
    assert "--home" in told
    assert other.exists() == is_there
    assert list(tmp_path.rglob("*")) == ([other] if is_there else [])


@pytest.mark.requirement("NEW-2", "CFG-1")
def test_what_to_type_next_names_the_home_and_the_file_that_were_named(
    call: Call, server: FabricatedHomeserver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command in a remedy, or behind "Next:", works when it is typed as it stands; where nothing was named it stays short."""
    monkeypatch.setenv("HAYATE_MATRIX__PASSWORD", "geheim-passwort")
    server.passwords["@bot:fab.test"] = "geheim-passwort"
    file = tmp_path / "other.toml"
    file.touch()
    place = str(tmp_path / "a home")
    named = f"--home '{place}' --config {file}"
    options = ("--home", place, "--config", str(file))
    assert f"Run: hayate-matrix login {named} --homeserver URL" in call("run", *options).err
    assert f"`hayate-matrix login {named}`" in call("doctor", *options).out
    login = ("login", "--homeserver", server.url, "--user", "@bot:fab.test")
    assert call(*login, *options).out.endswith(f"Next: hayate-matrix run {named}\n")
    assert f"Start it: hayate-matrix run {named}\n" in call("doctor", *options).out
    (tmp_path / "a home" / "secrets" / "credentials.json").write_text("{}")
    told = call("run", *options).err
    assert "what `hayate-matrix login` writes" in told
    assert call(*login).out.endswith("Next: hayate-matrix run\n")


@pytest.mark.requirement("ACC-1")
def test_a_start_in_a_home_without_a_login_makes_no_home(call: Call, home: Path) -> None:
    """The bot's start in a home that nobody logged in to says so, and leaves no folder."""
    outcome = call("run")
    assert outcome.code == 78
    assert f"Nobody has logged in to the home {home}" in outcome.err
    assert not home.exists()


@pytest.mark.requirement("STO-8")
def test_a_sealing_key_that_is_gone_is_named_by_its_place_alone(call: Call, home: Path) -> None:
    """No setting is blamed that was never set."""
    (home / "secrets").mkdir(parents=True, mode=0o700)
    (home / "hayate.db").touch()
    outcome = call("reseal")
    assert outcome.code == 74
    assert f"The sealing key {home / 'secrets' / 'store.key'} is not there." in outcome.err
    assert "key_file" not in outcome.err


def test_version_and_wrong_use(call: Call) -> None:
    """The version is the package's; what is no command is told with exit code 2."""
    assert call("--version").out.strip() == f"hayate-matrix {__version__}"
    assert call("dance").code == 2
    assert call("config", "show", "--set", "log.level").code == 78


def test_help_does_not_load_the_bot(call: Call) -> None:
    """--help answers at once: neither nio nor a database is imported for it."""
    import subprocess  # noqa: PLC0415  a fresh interpreter shows what is imported

    code = "import sys; import hayate_matrix.cli.main; print(sorted({'nio', 'sqlalchemy', 'aiohttp', 'alembic'} & set(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30)
    assert run.stdout.strip() == "[]"
