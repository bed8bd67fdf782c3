"""Where settings come from, which source wins, and how faults are told."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pytest
from pydantic import SecretStr

from hayate_matrix.core.allowlist import Policy, RoomEntry
from hayate_matrix.core.ids import UserId
from hayate_matrix.errors import SettingsError
from hayate_matrix.settings.model import Matrix, Settings
from hayate_matrix.settings.sources import Loaded, find_home, load, read_secret, to_variable
from hayate_matrix.settings.words import MASK, find_fields

if TYPE_CHECKING:
    from collections.abc import Mapping

Source = Literal["file", "environment", "command line"]
SOURCES: tuple[Source, ...] = ("file", "environment", "command line")


class World:
    """A home, an environment and a command line that a test writes into."""

    def __init__(self, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.home = home
        self._monkeypatch = monkeypatch
        self._options: dict[str, tuple[str, str]] = {}
        self._file: dict[str, dict[str, str]] = {}

    def write(self, text: str) -> None:
        (self.home / "hayate.toml").write_text(text)

    def set(self, source: Source, name: str, text: str) -> None:
        """Set `name` in one source; in the file `text` is TOML where it is valid, else it is quoted."""
        section, _, key = name.partition(".")
        if source == "environment":
            self._monkeypatch.setenv(to_variable(name), text)
        elif source == "command line":
            self._options[name] = (text, f"--set {name}")
        else:
            is_toml = text.startswith(("[", "{")) or text.isdigit() or text in {"true", "false"}
            self._file.setdefault(section, {})[key] = text if is_toml else json.dumps(text)
            self.write("\n".join(f"[{part}]\n" + "\n".join(f"{k} = {v}" for k, v in rows.items()) for part, rows in self._file.items()))

    def load(self) -> Loaded:
        return load(home=self.home, options=self._options)

    def refuse(self) -> str:
        with pytest.raises(SettingsError) as caught:
            self.load()
        return str(caught.value)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(tmp_path, monkeypatch)


@pytest.mark.requirement("ROOM-1", "CFG-1")
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize(
    ("text", "rooms"),
    [
        pytest.param(None, None, id="not written"),
        pytest.param("unset", None, id="unset"),
        pytest.param("", (), id="empty text"),
        pytest.param("[]", (), id="empty list"),
        pytest.param("!a:b.org", ("!a:b.org",), id="one"),
        pytest.param(" !a:b.org , #ops:b.org,dm:@ann:b.org", ("!a:b.org", "#ops:b.org", "dm:@ann:b.org"), id="commas"),
        pytest.param('["!a:b.org", "#x,y:b.org"]', ("!a:b.org", "#x,y:b.org"), id="JSON"),
    ],
)
def test_unset_empty_and_filled_rooms_are_three_things_in_each_source(
    world: World, source: Source, text: str | None, rooms: tuple[str, ...] | None
) -> None:
    """File, environment and command line each tell not set, empty and filled apart, in the same spelling."""
    if text is not None:
        world.set(source, "matrix.rooms", text)
    assert world.load().settings.matrix.rooms == rooms


@pytest.mark.requirement("ROOM-1", "CFG-1")
@pytest.mark.parametrize(("over", "under"), [("environment", "file"), ("command line", "file"), ("command line", "environment")])
@pytest.mark.parametrize(("text", "rooms"), [("unset", None), ("", ()), ("#ops:b.org", ("#ops:b.org",))])
def test_a_stronger_source_sets_rooms_to_any_of_the_three(
    world: World, over: Source, under: Source, text: str, rooms: tuple[str, ...] | None
) -> None:
    """A list in a weaker source can be replaced by unset, by empty and by another list."""
    world.set(under, "matrix.rooms", '["!a:b.org"]')
    world.set(over, "matrix.rooms", text)
    assert world.load().settings.matrix.rooms == rooms


@pytest.mark.requirement("ROOM-2")
@pytest.mark.parametrize("source", SOURCES)
def test_each_wrong_room_is_named_with_its_place_and_what_is_allowed(world: World, source: Source) -> None:
    """Two wrong items of four are both told: number, text, where it is written and the forms that are allowed."""
    world.set(source, "matrix.rooms", '["!a:b.org", "ops", "#ops:b.org", "@ann:b.org"]')
    text = world.refuse()
    place = {"file": "hayate.toml, line 2", "environment": "HAYATE_MATRIX__ROOMS", "command line": "--set matrix.rooms"}[source]
    for item in ("item 2: 'ops' is no room", "item 4: '@ann:b.org' is no room"):
        assert item in text
    assert text.count(place) == 2
    assert text.count("dm:@user:example.org") == 2
    assert "item 1" not in text
    assert "item 3" not in text


@pytest.mark.requirement("CFG-1")
@pytest.mark.parametrize(("over", "under"), [("environment", "file"), ("command line", "file"), ("command line", "environment")])
def test_environment_wins_over_the_file_and_the_command_line_over_both(world: World, over: Source, under: Source) -> None:
    """The stronger of two sources gives the value and is named as its place."""
    world.set(under, "harness.parallel_turns", "2")
    world.set(over, "harness.parallel_turns", "9")
    loaded = world.load()
    assert loaded.settings.harness.parallel_turns == 9
    rows = {name: place for name, _, place in loaded.list_rows()}
    assert (
        rows["harness.parallel_turns"]
        == {"environment": "HAYATE_HARNESS__PARALLEL_TURNS", "command line": "--set harness.parallel_turns"}[over]
    )
    assert rows["harness.turn_retries"] == "default"


@pytest.mark.requirement("CFG-1")
def test_all_faults_of_all_sources_are_told_at_once(world: World) -> None:
    """One error names the faults of file, environment and command line, each with value, place, limit and remedy."""
    world.write('[matrix]\nloop_breaker = 1\n# a comment\ntrigger = "sometimes"\n[log]\nformat = "xml"\n')
    world.set("environment", "harness.parallel_turns", "many")
    world.set("environment", "matrix.typing", "perhaps")
    world.set("command line", "store.url", "mysql://x/y")
    text = world.refuse()
    assert text.startswith("6 settings can't be used:")
    for line in (
        "matrix.loop_breaker: 1 is too small.\n    set in: hayate.toml, line 2\n    allowed: a whole number from 2 to 1000\n    do: ",
        'matrix.trigger: "sometimes" is not what can be used here.\n    set in: hayate.toml, line 4\n    allowed: "mention", "thread"',
        'log.format: "xml" is not what can be used here.\n    set in: hayate.toml, line 6\n    allowed: "text" or "json"',
        'harness.parallel_turns: "many" is not what can be used here.\n    set in: HAYATE_HARNESS__PARALLEL_TURNS\n    allowed: a whole',
        'matrix.typing: "perhaps" is not what can be used here.\n    set in: HAYATE_MATRIX__TYPING\n    allowed: true or false',
        "store.url: it is no address of a database.\n    set in: --set store.url\n    allowed: sqlite:",
    ):
        assert line in text


@pytest.mark.requirement("CFG-2")
@pytest.mark.parametrize(
    ("toml", "place", "near"),
    [
        ("[matrix]\nroms = []\n", "hayate.toml, line 2", "matrix.rooms"),
        ("[matrx]\nrooms = []\n", "hayate.toml, line 1", "matrix"),
        ("[matrix]\n\nparallel_turns = 2\n", "hayate.toml, line 3", "harness.parallel_turns"),
        ("rooms = []\n", "hayate.toml, line 1", "matrix.rooms"),
        ("matrix.roms = []\n", "hayate.toml, line 1", "matrix.rooms"),
    ],
)
def test_an_unknown_key_of_the_file_is_a_fault_with_the_nearest_known_one(world: World, toml: str, place: str, near: str) -> None:
    """A misspelt key, a misspelt section and a key of another section are told with the one that was meant."""
    world.write(toml)
    text = world.refuse()
    assert f"set in: {place}\n" in text
    assert f"the nearest known one is {near}\n" in text


@pytest.mark.requirement("CFG-2", "ROOM-1")
@pytest.mark.parametrize(
    "variable", ["HAYATE_MATRIX_ROOMS", "HAYATE_MATRIX__ROMS", "HAYATE_ROOMS", "HAYATE_MATIX__ROOMS", "hayate_matrix__roms"]
)
def test_a_misspelt_variable_is_never_overlooked(world: World, monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    """A variable that was meant to restrict the rooms stops the start instead of serving all of them."""
    monkeypatch.setenv(variable, "")
    text = world.refuse()
    assert f"set in: {variable}\n" in text
    assert "HAYATE_MATRIX__ROOMS" in text


@pytest.mark.requirement("CFG-1")
@pytest.mark.parametrize(("variable", "near"), [("HAYATE_HOM", "HAYATE_HOME"), ("HAYATE_CONF", "HAYATE_CONFIG")])
def test_a_misspelt_variable_that_is_no_setting_is_told_with_the_one_that_was_meant(
    world: World, monkeypatch: pytest.MonkeyPatch, variable: str, near: str
) -> None:
    """Where the home is and where the file is are looked for too."""
    monkeypatch.setenv(variable, "/somewhere")
    assert f"the nearest known variable is {near}\n" in world.refuse()


@pytest.mark.requirement("CFG-2")
@pytest.mark.parametrize("variable", ["HAYATE_MATRIX", "HAYATE_MATRIX__", "HAYATE_"])
def test_a_variable_that_names_no_setting_is_a_fault(world: World, monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    """A variable of the bot's that is only half a name is told."""
    monkeypatch.setenv(variable, "{}")
    assert f"there is no setting {variable!r}" in world.refuse()


@pytest.mark.requirement("CFG-1")
def test_variables_of_others_and_of_the_home_are_no_settings(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """What does not begin with HAYATE_, and the variables of the home and the file, are left alone."""
    monkeypatch.setenv("HAYATEX__A", "1")
    monkeypatch.setenv("HAYATE_HOME", "/nowhere")
    assert world.load().places == {}


@pytest.mark.requirement("CFG-1")
def test_tables_are_written_as_text_or_as_json(world: World) -> None:
    """A table has one spelling as a text and one as JSON, and single rows have variables of their own."""
    world.set("command line", "matrix.room_triggers", "!a:b.org=always, !c=thread")
    world.set("environment", "commands.power", '{"stop": 50, "steer": 100}')
    settings = world.load().settings
    assert settings.matrix.room_triggers == {"!a:b.org": "always", "!c": "thread"}
    assert settings.commands.power == {"stop": 50, "steer": 100}


@pytest.mark.requirement("CFG-1")
def test_one_row_of_a_table_has_a_variable(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """`__` goes one level deeper for tables."""
    monkeypatch.setenv("HAYATE_COMMANDS__POWER__STOP", "50")
    assert world.load().settings.commands.power == {"stop": 50}


@pytest.mark.requirement("CFG-1")
@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("matrix.room_triggers", '{"!a:b.org": "sometimes"}', "matrix.room_triggers, '!a:b.org'"),
        ("matrix.room_triggers", '{"room": "always"}', "'room' is no room"),
        ("matrix.room_triggers", "!a:b.org", "matrix.room_triggers"),
        ("commands.power", "stop=lots", "commands.power, 'stop'"),
        ("commands.power", "!stop=50", "'!stop' names no command"),
        ("matrix.people", '["@a:b.org"', "is no valid JSON"),
        ("matrix.people", "ann", "'ann' names nobody"),
        ("matrix.ignore", "bots", "'bots' matches no user id"),
        ("matrix.homeserver", "matrix.example.org", "is no address of a homeserver"),
        ("matrix.homeserver", "ftp://example.org", "is no address of a homeserver"),
        ("matrix.homeserver", "https://example.org:0", "is no address of a homeserver"),
        ("matrix.homeserver", "https://bot:pw@example.org", "is no address of a homeserver"),
        ("matrix.homeserver", "https://example.org/_matrix", "is no address of a homeserver"),
        ("matrix.homeserver", "https://example.org:99999", "is no address of a homeserver"),
        ("matrix.user", "bot", "'bot' is no user id"),
        ("matrix.device_name", "", "is too small"),
        ("matrix.device_name", "x" * 101, "is too large"),
        ("harness.parallel_turns", "65", '"65" is too large'),
        ("store.low_water_bytes", "5", "a whole number from 1048576"),
    ],
)
def test_values_that_look_right_and_are_not_are_refused(world: World, name: str, text: str, told: str) -> None:
    """Each kind of value is checked in its parts and told in words."""
    world.set("environment", name, text)
    assert told in world.refuse()


@pytest.mark.requirement("CFG-1")
@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("[matrix", "it is no TOML"),
        ("matrix = 3", "there is no setting 'matrix'"),
        ("[matrix]\nrooms = 3", "matrix.rooms: 3 is not what can be used here"),
    ],
)
def test_a_file_that_cannot_be_read_as_settings_is_told(world: World, content: str, told: str) -> None:
    """A file that is no TOML, a section that is a number and a list that is one are faults like any other."""
    world.write(content)
    assert told in world.refuse()


@pytest.mark.requirement("CFG-1")
def test_a_named_file_must_be_there_and_the_default_one_need_not(world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nobody who names a file runs by accident without it."""
    assert world.load().file is None
    monkeypatch.setenv("HAYATE_CONFIG", str(tmp_path / "missing.toml"))
    assert "missing.toml is not there" in world.refuse()
    monkeypatch.setenv("HAYATE_CONFIG", str(tmp_path))
    assert f"{tmp_path} is no file" in world.refuse()
    monkeypatch.setenv("HAYATE_CONFIG", str(tmp_path / "missing.toml"))
    (tmp_path / "missing.toml").write_text("[log]\nlevel = 'debug'\n")
    assert world.load().settings.log.level == "debug"


@pytest.mark.requirement("SEC-3", "CFG-1")
def test_secrets_are_never_taken_from_the_command_line(world: World) -> None:
    """Every user of a machine can read command lines: password, token and a database's password are refused there, unshown."""
    world.set("command line", "matrix.password", "geheim-1")
    world.set("command line", "matrix.access_token", "geheim-2")
    world.set("command line", "store.url", "postgresql://bot:geheim-3@db/hayate")
    text = world.refuse()
    assert text.count("a secret is never taken from the command line") == 3
    assert "geheim" not in text
    assert "HAYATE_MATRIX__PASSWORD" in text


@pytest.mark.requirement("SEC-3", "CFG-2")
@pytest.mark.parametrize("url", ["postgresql://bot:geheim-3@db/hayate", "postgresql://db/hayate?user=bot&password=geheim-3"])
def test_secrets_are_masked_where_settings_are_shown(world: World, url: str) -> None:
    """No list and no representation of the settings holds a secret."""
    world.set("environment", "matrix.password", "geheim-1")
    world.set("file", "matrix.access_token", "geheim-2")
    world.set("environment", "store.url", url)
    loaded = world.load()
    rows = {name: value for name, value, _ in loaded.list_rows()}
    assert rows["matrix.password"] == rows["matrix.access_token"] == MASK
    assert "bot" in rows["store.url"]
    assert "geheim" not in str(rows)
    assert loaded.settings.store.url == url
    assert "geheim-1" not in repr(loaded.settings.matrix)


@pytest.mark.requirement("SEC-3")
def test_a_secret_of_the_wrong_kind_is_not_shown_in_the_fault(world: World) -> None:
    """A fault of a secret names the setting and not the value."""
    world.write("[matrix]\naccess_token = 424242\n")
    text = world.refuse()
    assert "matrix.access_token: it is not what can be used here" in text
    assert "424242" not in text


@pytest.mark.requirement("STO-1")
def test_the_home_is_the_option_else_the_variable_else_in_the_data_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three places, the first that is named wins."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.delenv("HAYATE_HOME", raising=False)
    assert find_home() == tmp_path / "data" / "hayate-matrix"
    monkeypatch.setenv("HAYATE_HOME", str(tmp_path / "named"))
    assert find_home() == tmp_path / "named"
    assert find_home(tmp_path / "option") == tmp_path / "option"
    monkeypatch.setenv("HAYATE_HOME", "")
    monkeypatch.setenv("XDG_DATA_HOME", "")
    assert find_home() == Path.home() / ".local" / "share" / "hayate-matrix"


@pytest.mark.requirement("CFG-1")
def test_relative_paths_stand_in_the_home(world: World) -> None:
    """A path means the same wherever the bot is started."""
    world.set("file", "store.key_file", "keys/store.key")
    world.set("environment", "matrix.password_file", "/run/secrets/password")
    settings = world.load().settings
    assert settings.store.key_file == world.home / "keys" / "store.key"
    assert settings.matrix.password_file == Path("/run/secrets/password")


@pytest.mark.requirement("SEC-3")
def test_a_secret_file_is_read_only_where_nobody_else_can(tmp_path: Path) -> None:
    """A file that others can read, an empty one and a missing one are refused with what to do."""
    path = tmp_path / "password"
    with pytest.raises(SettingsError, match="can't be read"):
        read_secret(None, path, name="matrix.password_file")
    path.write_text("hunter22\n")
    path.chmod(0o640)
    with pytest.raises(SettingsError, match="chmod 600"):
        read_secret(None, path, name="matrix.password_file")
    path.chmod(0o600)
    assert read_secret(None, path, name="matrix.password_file") == "hunter22"
    assert read_secret(SecretStr("other"), path, name="matrix.password_file") == "other"
    assert read_secret(None, None, name="matrix.password_file") is None
    path.write_text("\n")
    with pytest.raises(SettingsError, match="is empty"):
        read_secret(None, path, name="matrix.password_file")


@pytest.mark.requirement("CFG-1")
def test_every_setting_has_a_default_and_one_sentence() -> None:
    """Nothing has to be set, and everything is explained in one sentence."""
    assert Settings() == Settings.model_validate({})
    for name, field in find_fields().items():
        assert not field.is_required(), name
        assert field.description, name
        assert field.description.endswith("."), name
        assert not re.search(r"\.\s", field.description), f"{name}: more than one sentence"


@pytest.mark.requirement("ROOM-1", "ROOM-4")
@pytest.mark.parametrize(
    ("rooms", "policy_rooms"),
    [(None, None), ((), ()), (("#ops:b.org", "dm:@ann:b.org"), (RoomEntry("alias", "#ops:b.org"), RoomEntry("dm", "@ann:b.org")))],
)
def test_the_policy_is_what_was_set(rooms: tuple[str, ...] | None, policy_rooms: tuple[RoomEntry, ...] | None) -> None:
    """Unset, empty and filled reach the decisions as three things."""
    matrix = Matrix(rooms=rooms, people=("@ann:b.org",), inviters=(), ignore=("@_irc_*:*",))
    assert matrix.make_policy(UserId("@bot:b.org")) == Policy(
        own_user_id=UserId("@bot:b.org"), rooms=policy_rooms, people=("@ann:b.org",), inviters=(), ignore=("@_irc_*:*",)
    )


@pytest.mark.requirement("CFG-1")
def test_settings_do_not_read_the_environment_behind_our_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """`Settings()` is the defaults, whatever is set around it."""
    before: Mapping[str, object] = Settings().model_dump()
    monkeypatch.setenv("HAYATE_HARNESS__PARALLEL_TURNS", "9")
    assert Settings().model_dump() == before
