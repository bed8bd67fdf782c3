"""Every setting: its type, its limits, its default and one sentence.

Promise: a setting that is not set is its default, and for lists None (unset) is never the same as () (empty).
How: pydantic checks; texts from the environment and the command line are read here in the same way as in the file.
Not here: where values come from, and the words of an error (settings/sources).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, SecretStr
from pydantic_core import PydanticCustomError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from hayate_matrix.core import allowlist
from hayate_matrix.core.commands import COMMANDS
from hayate_matrix.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable

    from hayate_matrix.core.ids import UserId

UNSET = "unset"
"""Written as a value it takes a setting back to its default, over a file that sets it."""


def read_list(value: object) -> object:
    """Return the list that a text writes: JSON where it starts with `[`, else items between commas; the empty text is the empty list."""
    if not isinstance(value, str):
        return value
    text = value.strip()
    if text.startswith("["):
        return _read_json(text)
    return [item.strip() for item in text.split(",")] if text else []


def read_map(value: object) -> object:
    """Return the table that a text writes: JSON where it starts with `{`, else `key=value` separated by commas."""
    if not isinstance(value, str):
        return value
    text = value.strip()
    if text.startswith("{"):
        return _read_json(text)
    pairs = [item.rpartition("=") for item in text.split(",")] if text else []
    return {key.strip(): item.strip() for key, _, item in pairs}


def _read_json(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError as error:
        raise PydanticCustomError("json", "is no valid JSON ({reason})", {"reason": str(error)}) from None


def _item(parse: Callable[[str], object]) -> Callable[[str], str]:
    """Return a validator that lets through what `parse` takes."""

    def check(text: str) -> str:
        try:
            parse(text)
        except InputError as error:
            raise PydanticCustomError("item", "{problem}", {"problem": error.problem, "allowed": error.allowed}) from None
        return text

    return check


def _refuse(problem: str, allowed: str) -> PydanticCustomError:
    return PydanticCustomError("item", "{problem}", {"problem": problem, "allowed": f"Allowed: {allowed}."})


def _check_homeserver(text: str) -> str:
    try:
        parts = urlsplit(text)
        is_good = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_good, parts = False, urlsplit("")
    if not is_good or parts.path.strip("/") or parts.query or parts.fragment or parts.username:
        raise _refuse(f"{text!r} is no address of a homeserver", "https://matrix.example.org, with a port if it needs one")
    return text.rstrip("/")


def _check_store_url(text: str) -> str:
    scheme, separator, rest = text.partition("://")
    if not separator or not rest or scheme.partition("+")[0] not in {"sqlite", "postgresql", "postgres"}:
        raise _refuse("it is no address of a database", "sqlite:////var/lib/hayate/hayate.db or postgresql://user@host/name")
    return text


def _check_command(text: str) -> str:
    if text not in COMMANDS:
        raise _refuse(f"{text!r} names no command", ", ".join(COMMANDS))
    return text


Person = Annotated[str, AfterValidator(_item(allowlist.parse_person))]
Pattern = Annotated[str, AfterValidator(_item(allowlist.parse_pattern))]
Room = Annotated[str, AfterValidator(_item(allowlist.parse_room))]
UserName = Annotated[str, AfterValidator(_item(allowlist.parse_user))]
Trigger = Literal["mention", "thread", "always"]


class Section(BaseModel):
    """A part of the settings; it can't be changed after the start."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class Matrix(Section):
    """The account, the rooms it serves, and how it behaves in them."""

    homeserver: Annotated[str, AfterValidator(_check_homeserver)] | None = Field(
        None, description="The address of the homeserver's client API; `login` keeps it, so only `login` needs it."
    )
    user: UserName | None = Field(None, description="The account's full user id, for `login`.")
    password: SecretStr | None = Field(
        None, description="The account's password, for `login` and for a login that the server asks to repeat; better in a file."
    )
    password_file: Path | None = Field(None, description="A file that holds the account's password, readable by the bot's user alone.")
    access_token: SecretStr | None = Field(None, description="An access token for `login` in place of a password.")
    device_name: str = Field("Hayate Matrix", min_length=1, max_length=100, description="The name under which people see the bot's device.")
    rooms: Annotated[tuple[Room, ...] | None, BeforeValidator(read_list)] = Field(
        None,
        description="The rooms that are served; unset serves every room that it is invited to, an empty list serves none.",
    )
    people: Annotated[tuple[Person, ...] | None, BeforeValidator(read_list)] = Field(
        None, description="Who may speak to the bot; unset means anyone in a served room, an empty list nobody."
    )
    inviters: Annotated[tuple[Person, ...] | None, BeforeValidator(read_list)] = Field(
        None, description="Who may invite the bot; unset means `matrix.people` where that is set, else the accounts of its own server."
    )
    ignore: Annotated[tuple[Pattern, ...], BeforeValidator(read_list)] = Field(
        (), description="Accounts that are never answered, as patterns in which `*` and `?` stand for anything: bridges, other bots."
    )
    trigger: Trigger = Field(
        "thread",
        description="What makes a message in a room a request: a mention or a reply to the bot, also any message of a thread that it "
        "was addressed in, or every message.",
    )
    room_triggers: Annotated[dict[Room, Trigger], BeforeValidator(read_map)] = Field(
        {}, description="Another `matrix.trigger` for single rooms, by room id."
    )
    leave_denied: bool = Field(
        default=False, description="Whether the bot leaves rooms that are no longer allowed, instead of staying silent in them."
    )
    devices: Literal["cross-signed", "all"] = Field(
        "cross-signed",
        description="Which devices get room keys and are heard: those that their owners have cross-signed (verified), or every one.",
    )
    encryption: Literal["on", "off"] = Field(
        "on", description="Whether encryption is used; `off` is for servers without encrypted rooms, and such rooms get no answer then."
    )
    ack: Literal["none", "reaction"] = Field("none", description="Whether a request gets a ✅ or ⚠️ reaction when its answer is sent.")
    typing: bool = Field(default=True, description="Whether the room sees that an answer is being written.")
    receipts: bool = Field(default=True, description="Whether a request is marked as read when it is accepted.")
    loop_breaker: int = Field(
        8,
        ge=2,
        le=1000,
        description="Messages in a row from one account, each sooner after the bot's than a person could type it, after which such are "
        "not answered.",
    )
    backfill_limit: int = Field(
        1000, ge=0, le=100_000, description="Messages of one room that are fetched to fill a gap; what is beyond is counted in one line."
    )
    backlog_age_s: int = Field(
        86_400, ge=0, le=31_536_000, description="Seconds; after a longer outage, messages older than this are counted and not answered."
    )

    def make_policy(self, own_user_id: UserId) -> allowlist.Policy:
        """Return what decides about rooms and people."""
        return allowlist.Policy(
            own_user_id=own_user_id,
            rooms=None if self.rooms is None else tuple(allowlist.parse_room(text) for text in self.rooms),
            people=self.people,
            inviters=self.inviters,
            ignore=self.ignore,
        )


class Harness(Section):
    """How turns are run."""

    parallel_turns: int = Field(16, ge=1, le=64, description="Turns that run at the same time, over all conversations.")
    turn_retries: int = Field(3, ge=0, le=20, description="How often a turn that a crash cut off is gone on with before it ends as failed.")


class Sessions(Section):
    """How long a session lasts, and its text is kept."""

    idle_s: int = Field(
        86_400, ge=60, le=31_536_000, description="Seconds without a message after which a session is closed; the next opens a fresh one."
    )
    keep_days: int | None = Field(
        None,
        ge=1,
        le=36_500,
        description="Days without a message after which a session's text is removed for good; unset keeps it for ever.",
    )


class Limits(Section):
    """How much may be asked of the bot; a limit that is unset is none."""

    person_queue: int | None = Field(
        None, ge=1, le=100_000, description="Requests of one person, over all rooms, that are queued or running at a time."
    )
    person_requests_hour: int | None = Field(None, ge=1, le=1_000_000, description="Requests of one person in an hour of the UTC clock.")
    person_tokens_day: int | None = Field(
        None, ge=1, le=10**15, description="Tokens that one person's requests use on a day of the UTC clock."
    )
    person_money_day: float | None = Field(
        None,
        gt=0,
        le=10**6,
        description="Money that one person's requests cost on a day of the UTC clock, in the currency in which the runtime reports.",
    )
    room_queue: int | None = Field(None, ge=1, le=100_000, description="Requests of one room that are queued or running at a time.")
    room_requests_hour: int | None = Field(None, ge=1, le=1_000_000, description="Requests of one room in an hour of the UTC clock.")
    room_tokens_day: int | None = Field(None, ge=1, le=10**15, description="Tokens that one room's requests use on a day of the UTC clock.")
    room_money_day: float | None = Field(
        None,
        gt=0,
        le=10**6,
        description="Money that one room's requests cost on a day of the UTC clock, in the currency in which the runtime reports.",
    )


class Store(Section):
    """Where the harness keeps what it knows."""

    url: Annotated[str, AfterValidator(_check_store_url)] | None = Field(
        None, description="The database: unset means `hayate.db` in the home; `postgresql://…` is a PostgreSQL 15 or later."
    )
    seal: bool = Field(default=True, description="Whether all texts are stored encrypted, so that a copied database alone tells nothing.")
    key_file: Path | None = Field(
        None,
        description="The file with the sealing key, or `keyring:NAME` for an entry of the system's keyring; unset means "
        "`secrets/store.key` in the home.",
    )
    low_water_bytes: int = Field(
        268_435_456,
        ge=1_048_576,
        le=1_099_511_627_776,
        description="Bytes that should be free on the disk; below half of it new turns wait, below a quarter nothing is taken from the "
        "homeserver.",
    )


class Runtime(Section):
    """Who answers."""

    name: Literal["scripted"] = Field("scripted", description="The agent runtime; `scripted` answers by rules and needs no model.")


class Log(Section):
    """What is written about the work; never a secret and never what people wrote."""

    level: Literal["debug", "info", "warning", "error"] = Field("info", description="The least that is logged.")
    format: Literal["text", "json"] = Field("text", description="Lines for people or for programs.")


class Commands(Section):
    """What people in a room may ask the bot itself."""

    power: Annotated[
        dict[Annotated[str, AfterValidator(_check_command)], Annotated[int, Field(ge=-100, le=100)]], BeforeValidator(read_map)
    ] = Field({}, description="The power level that a command needs, by its name; a command that is not named keeps its own.")


class Settings(BaseSettings):
    """All settings; made without arguments it is the defaults, whatever the environment holds."""

    model_config = SettingsConfigDict(
        frozen=True, extra="forbid", env_prefix="HAYATE_", env_nested_delimiter="__", enable_decoding=False, hide_input_in_errors=True
    )

    matrix: Matrix = Matrix()
    harness: Harness = Harness()
    sessions: Sessions = Sessions()
    limits: Limits = Limits()
    store: Store = Store()
    runtime: Runtime = Runtime()
    log: Log = Log()
    commands: Commands = Commands()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003  all five are given by pydantic-settings
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Take nothing but what is handed in: settings/sources reads file, environment and command line, and remembers which."""
        return (init_settings,)
