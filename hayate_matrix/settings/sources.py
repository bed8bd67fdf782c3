"""Where settings come from: defaults, one TOML file over them, the environment over it, the command line over all.

Promise: all faults are told at once, each with setting, value, place, what is allowed and what to do; a secret is never shown.
How: every source is read into (section, name) pairs that keep their place, the last one wins, and pydantic checks what is left.
Not here: what settings there are (settings/model).
"""

from __future__ import annotations

import os
import re
import tomllib
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import SecretStr, ValidationError
from pydantic_settings import EnvSettingsSource, TomlConfigSettingsSource

from hayate_matrix.errors import SettingsError
from hayate_matrix.settings.model import UNSET, Settings
from hayate_matrix.settings.words import describe_allowed, find_fields, is_secret, mask, tell_reason

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pydantic_core import ErrorDetails

PREFIX = "HAYATE_"
HOME_VARIABLE = "HAYATE_HOME"
CONFIG_VARIABLE = "HAYATE_CONFIG"
FILE_NAME = "hayate.toml"
_OTHER_VARIABLES = frozenset({HOME_VARIABLE, CONFIG_VARIABLE, "HAYATE_SYNAPSE_PYTHON"})
"""Variables that are no settings: where the home and the file are, and with what the demo starts its homeserver."""
_TEST_PREFIX = "HAYATE_TEST_"
_PASSWORD_IN_URL = re.compile(r"://[^/@:]*:[^/@]+@|[?&]password=")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One setting that can't be used."""

    name: str
    place: str
    problem: str
    allowed: str = ""
    remedy: str = ""

    def __str__(self) -> str:
        """Return the lines for the operator."""
        rows = [("set in", self.place), ("allowed", self.allowed), ("do", self.remedy)]
        return "\n".join([f"{self.name}: {self.problem}", *(f"    {label}: {text}" for label, text in rows if text)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """The settings in force, and where each comes from."""

    settings: Settings
    home: Path
    file: Path | None
    """The settings file that was read."""
    places: Mapping[str, str] = field(default_factory=dict)
    """By `section.name` the place that set it; a setting that is missing here has its default."""

    def list_rows(self) -> Iterator[tuple[str, str, str]]:
        """Yield name, value and place of each setting, secrets masked."""
        for name in find_fields():
            section, _, key = name.partition(".")
            value = getattr(getattr(self.settings, section), key)
            yield name, mask(name, value), self.places.get(name, "default")


@dataclass(slots=True)
class _Values:
    """What has been read so far: by name the value and its place."""

    found: dict[str, tuple[Any, str]] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)

    def take(self, name: str, value: object, place: str, shown: str) -> None:
        if name not in find_fields():
            self.faults.append(_unknown(name, place, shown))
        else:
            self.found[name] = (value, place)


def find_home(option: Path | None = None) -> Path:
    """Return the home: the option, else HAYATE_HOME, else `hayate-matrix` in the user's data directory."""
    named = str(option or "") or os.environ.get(HOME_VARIABLE, "")
    if named:
        return Path(named).expanduser().absolute()
    data = os.environ.get("XDG_DATA_HOME", "")
    return (Path(data) if data else Path.home() / ".local" / "share") / "hayate-matrix"


def load(*, home: Path | None = None, file: Path | None = None, options: Mapping[str, tuple[str, str]] | None = None) -> Loaded:
    """Return the settings in force.

    Args:
        home: the home, where the command line names it.
        file: the settings file, where the command line names it; else HAYATE_CONFIG, else `hayate.toml` in the home if there is one.
        options: by `section.name` the text and the option that gave it, as it is spelt.

    Raises:
        SettingsError: one or more can't be used; the text lists all of them.
    """
    place = find_home(home)
    values = _Values()
    source = _find_file(place, file, values)
    if source is not None:
        _read_file(source, values)
    _read_environment(values)
    for name, (text, option) in (options or {}).items():
        _read_option(name, text, option, values)
    tree: dict[str, dict[str, Any]] = {}
    for name, (value, _) in values.found.items():
        if not (isinstance(value, str) and value.strip() == UNSET):
            section, _, key = name.partition(".")
            tree.setdefault(section, {})[key] = value
    settings = Settings()
    try:
        settings = Settings.model_validate(tree)
    except ValidationError as error:
        values.faults.extend(_to_fault(details, values.found) for details in error.errors(include_url=False))
    if values.faults:
        raise _make_error(values.faults)
    return Loaded(
        settings=_resolve_paths(settings, place),
        home=place,
        file=source,
        places={name: where for name, (_, where) in values.found.items()},
    )


def _find_file(home: Path, option: Path | None, values: _Values) -> Path | None:
    named = str(option or "") or os.environ.get(CONFIG_VARIABLE, "")
    path = Path(named).expanduser() if named else home / FILE_NAME
    if path.is_file():
        return path
    if named:
        place = "--config" if option else CONFIG_VARIABLE
        values.faults.append(
            Fault(
                name="settings file",
                place=place,
                problem=f"{path} {'is no file' if path.exists() else 'is not there'}.",
                remedy="Correct the path, or make it.",
            )
        )
    return None


def _read_file(path: Path, values: _Values) -> None:
    try:
        tables = TomlConfigSettingsSource(Settings, path).toml_data
        text = path.read_text()
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        values.faults.append(Fault(name="settings file", place=str(path), problem=f"it is no TOML: {error}.", remedy="Correct it there."))
        return
    except OSError as error:
        values.faults.append(Fault(name="settings file", place=str(path), problem=f"it can't be read: {error.strerror}."))
        return
    for section, table in tables.items():
        if not isinstance(table, dict):
            values.faults.append(_unknown(section, _find_line(path, text, "", section), section))
            continue
        if section not in Settings.model_fields:
            values.faults.append(_unknown(section, _find_line(path, text, section, ""), f"[{section}]"))
            continue
        for key, value in table.items():
            values.take(f"{section}.{key}", value, _find_line(path, text, section, key), key)


def _find_line(path: Path, text: str, section: str, key: str) -> str:
    """Return the file and, where it can be told, the line that sets `key` in `section`; without `key` the line of the section."""
    quoted = rf"[\"']?{re.escape(key)}[\"']?"
    dotted = rf"{re.escape(section)}\s*\.\s*{quoted}" if section else quoted
    here = ""
    for number, line in enumerate(text.splitlines(), 1):
        header = re.match(r"\s*\[\s*([^\[\]]+?)\s*\]", line)
        if header:
            here = header[1].strip("\"'")
            if not key and here.partition(".")[0] == section:
                return f"{path.name}, line {number}"
            if key and here == f"{section}.{key}":
                return f"{path.name}, line {number}"
        elif key and re.match(rf"\s*{quoted}\s*[.=]" if here == section else rf"\s*{dotted}\s*[.=]", line) and here in {section, ""}:
            return f"{path.name}, line {number}"
    return path.name


def _read_environment(values: _Values) -> None:
    sections = EnvSettingsSource(Settings)()
    for variable, text in os.environ.items():
        name = variable.upper()
        if not name.startswith(PREFIX) or name in _OTHER_VARIABLES or name.startswith(_TEST_PREFIX):
            continue
        section, _, key = name.removeprefix(PREFIX).lower().partition("__")
        head, _, tail = key.partition("__")
        read = sections.get(section)
        if not key or not isinstance(read, dict):
            values.faults.append(_unknown(f"{section}.{key}" if key else section, variable, variable))
        elif tail:  # HAYATE_COMMANDS__POWER__STOP=50 is one row of a table
            values.take(f"{section}.{head}", read.get(head, text), variable, variable)
        else:
            values.take(f"{section}.{key}", read.get(key, text), variable, variable)


def _read_option(name: str, text: str, option: str, values: _Values) -> None:
    known = find_fields().get(name)
    if known is not None and (is_secret(known) or (name == "store.url" and _PASSWORD_IN_URL.search(text))):
        # What is on a command line can be read by every user of the machine.
        remedy = f"Use {to_variable(name)} or the settings file."
        values.faults.append(Fault(name=name, place=option, problem="a secret is never taken from the command line.", remedy=remedy))
        return
    values.take(name, text, option, name)


def to_variable(name: str) -> str:
    """Return the environment variable of a setting: `matrix.rooms` is HAYATE_MATRIX__ROOMS."""
    return PREFIX + name.replace(".", "__").upper()


def _unknown(name: str, place: str, shown: str) -> Fault:
    names = list(find_fields())
    is_variable = place.upper().startswith(PREFIX)
    wide = names if is_variable else [*names, *Settings.model_fields]
    near = get_close_matches(name.replace("_", ".", 1) if is_variable else name, wide, n=1, cutoff=0.6)
    near = near or get_close_matches(name, names, n=1, cutoff=0.6)
    key = name.rpartition(".")[2]
    near = near or [known for known in names if known.rpartition(".")[2] == key][:1]
    allowed = f"the nearest known one is {near[0]}" if near else "`hayate-matrix config show` lists all settings"
    if near and is_variable:
        allowed += f", as a variable {to_variable(near[0])}"
    elif is_variable and (others := get_close_matches(place.upper(), sorted(_OTHER_VARIABLES), n=1, cutoff=0.8)):
        allowed = f"the nearest known variable is {others[0]}"
    return Fault(
        name=name, place=place, problem=f"there is no setting {shown!r}.", allowed=allowed, remedy="Correct the name, or take it out."
    )


def _to_fault(details: ErrorDetails, found: Mapping[str, tuple[Any, str]]) -> Fault:
    location = details["loc"]
    name = ".".join(str(part) for part in location[:2])
    known = find_fields()[name]
    _, place = found[name]
    inside = [part for part in location[2:] if part != "[key]"]
    where = "".join(f", item {part + 1}" if isinstance(part, int) else f", {part!r}" for part in inside)
    context = details.get("ctx", {})
    allowed = str(context.get("allowed", "")).removeprefix("Allowed: ").rstrip(".")
    allowed = allowed or (str(context.get("expected", "")) if inside else "") or describe_allowed(known)
    remedy = f'Correct it there, or write "{UNSET}" for the default.' if not inside else "Correct the item, or take it out."
    return Fault(name=name + where, place=place, problem=tell_reason(details, is_hidden=is_secret(known)), allowed=allowed, remedy=remedy)


def _make_error(faults: list[Fault]) -> SettingsError:
    count = "One setting" if len(faults) == 1 else f"{len(faults)} settings"
    text = "\n".join(str(fault) for fault in sorted(faults, key=lambda fault: fault.name))
    return SettingsError(f"{count} can't be used:\n{text}")


def _resolve_paths(settings: Settings, home: Path) -> Settings:
    """Return `settings` with every path absolute: one that is relative stands in the home."""
    changed: dict[str, Any] = {}
    for section in Settings.model_fields:
        part = getattr(settings, section)
        paths = {key: home / value.expanduser() for key, value in part if isinstance(value, Path)}
        if paths:
            changed[section] = part.model_copy(update=paths)
    return settings.model_copy(update=changed)


def read_secret(secret: SecretStr | None, file: Path | None, *, name: str) -> str | None:
    """Return a secret given as a value or as a file, else None.

    Raises:
        SettingsError: the file can't be read, is empty, or other users can read it.
    """
    if secret is not None:
        return secret.get_secret_value()
    if file is None:
        return None
    try:
        mode = file.stat().st_mode
        text = file.read_text().rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        raise SettingsError(f"{name} names {file}, which can't be read: {reason}.", remedy="Correct the path or the permissions.") from None
    if mode & 0o077:
        raise SettingsError(f"{name} names {file}, which other users can read or write.", remedy=f"Run: chmod 600 {file}")
    if not text:
        raise SettingsError(f"{name} names {file}, which is empty.", remedy="Write the secret into it, on one line.")
    return text
