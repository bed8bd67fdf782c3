"""The documentation says what the program does: every name has a heading, every block works."""

from __future__ import annotations

import configparser
import inspect
import re
import shlex
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from typer.main import get_command

from hayate_matrix import errors
from hayate_matrix.cli.main import app
from hayate_matrix.core.commands import COMMANDS
from hayate_matrix.core.hashtags import parse_tags
from hayate_matrix.errors import HayateError, StopError
from hayate_matrix.settings.model import Settings
from hayate_matrix.settings.sources import load, to_variable
from hayate_matrix.settings.words import describe_allowed, find_fields, mask

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")])
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def read(name: str) -> str:
    return (ROOT / "docs" / name).read_text()


def find_headings(text: str) -> set[str]:
    return {line.lstrip("#").strip() for line in text.splitlines() if line.startswith("#")}


def list_blocks(kind: str) -> Sequence[object]:
    found = []
    for page in PAGES:
        for number, (name, block) in enumerate(FENCE.findall(page.read_text())):
            if name == kind:
                found.append(pytest.param(block, id=f"{page.relative_to(ROOT)}:{number}"))
    return found


@pytest.mark.requirement("CFG-1")
@pytest.mark.parametrize("name", find_fields())
def test_each_setting_is_documented_as_it_is(name: str) -> None:
    """The page holds heading, sentence, limits, default and variable of each setting, word for word."""
    field = find_fields()[name]
    section, _, key = name.partition(".")
    default = mask(name, getattr(getattr(Settings(), section), key))
    limits = f"- allowed: {describe_allowed(field)}\n- default: `{default}`\n- variable: `{to_variable(name)}`\n"
    expected = f"### {name}\n\n{field.description}\n\n{limits}"
    assert expected in read("settings.md"), f"docs/settings.md lacks:\n{expected}"


def test_no_setting_is_documented_that_does_not_exist() -> None:
    """A setting that was removed is removed from the page."""
    documented = {name for name in find_headings(read("settings.md")) if re.fullmatch(r"[a-z]+\.[a-z_]+", name)}
    assert documented == set(find_fields())


@pytest.mark.requirement("CMD-1")
@pytest.mark.parametrize("name", COMMANDS)
def test_each_room_command_has_a_heading(name: str) -> None:
    """Whoever sees a command finds it in the reference."""
    assert f"!{name}" in find_headings(read("commands.md"))


def test_each_command_of_the_command_line_has_a_heading() -> None:
    """Every command and subcommand is in the reference."""
    command = get_command(app)
    names = []
    for name, one in command.commands.items():  # type: ignore[attr-defined]  # a typer app is a group
        names += [f"{name} {inner}" for inner in getattr(one, "commands", {})] or [name]
    assert {f"hayate-matrix {name}" for name in names} <= find_headings(read("commands.md"))


@pytest.mark.parametrize(
    "kind",
    [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, HayateError)],
    ids=lambda kind: str(kind.code),
)
def test_each_error_code_has_a_heading_and_says_what_happens_next(kind: type[HayateError]) -> None:
    """A program's code leads to a paragraph, with the exit code where it ends the program."""
    text = read("errors.md")
    assert kind.code in find_headings(text)
    paragraph = text.split(f"\n## {kind.code}\n", 1)[1].split("\n## ", 1)[0]
    if issubclass(kind, StopError):
        assert f"exit code {kind.exit_code}" in paragraph


@pytest.mark.requirement("CFG-1")
@pytest.mark.parametrize("block", list_blocks("toml"))
def test_each_settings_block_can_be_used(block: str, tmp_path: Path) -> None:
    """What the documentation shows as settings is accepted as it stands."""
    (tmp_path / "hayate.toml").write_text(block)
    assert tomllib.loads(block)
    assert load(home=tmp_path).places


@pytest.mark.parametrize("block", list_blocks("console"))
def test_each_command_block_can_be_typed(block: str) -> None:
    """Each line that starts with `$` is a command with options that exist, or a name of the Makefile."""
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    lines = [line.removeprefix("$ ") for line in block.splitlines() if line.startswith("$ ")]
    assert lines
    for line in lines:
        program, *arguments = shlex.split(line)
        if program == "make":
            assert arguments[0] in targets, line
        else:
            assert Path(program).name == "hayate-matrix", line
            parse(arguments)


def parse(arguments: list[str]) -> None:
    """Parse a command line without running it; a command or an option that does not exist raises."""
    command = get_command(app)
    while hasattr(command, "commands"):
        command = command.commands[arguments.pop(0)]
    command.make_context("hayate-matrix", arguments)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    """No page links to a file that is not there."""
    for target in re.findall(r"\]\(([^)#\s]+)", FENCE.sub("", page.read_text())):
        if "://" not in target:
            assert (page.parent / target).exists(), target


@pytest.mark.requirement("DOC-1", "IDX-3")
@pytest.mark.parametrize(
    "clause",
    [
        pytest.param(r"lone apostrophe hides what follows on its line\b.*\bput the tag on a plain line", id="an apostrophe"),
        pytest.param(r"Pasted text counts as your own words\b.*\bhas set that tag", id="pasted prose"),
        pytest.param(
            r"Messages from before the bot served the room\b.*\bsteered\b.*\bare not indexed afterwards", id="history and steering"
        ),
        pytest.param(r"A lookup needs its session\W+.*\bretention\b.*\bhas removed a session", id="retention"),
        pytest.param(r"shared room has a shared index\b.*\bNobody's tags there are private", id="a shared room"),
        pytest.param(
            r"whoever is in the room now can look up what was said\b.*\bbefore they came\b.*`commands\.power`", id="who came later"
        ),
        pytest.param(r"A tag allows nothing\b.*\bmay do never depends on one", id="no permission"),
    ],
)
def test_the_page_on_hashtags_goes_on_saying(clause: str) -> None:
    """What surprises people about tags stands on their page, each in one paragraph."""
    paragraphs = [" ".join(part.split()) for part in re.split(r"\n\n|\n(?=- )", read("hashtags.md"))]
    assert [part for part in paragraphs if re.search(clause, part)]


@pytest.mark.requirement("DOC-1", "TAG-1", "TAG-7")
def test_the_examples_of_the_page_on_hashtags_are_read_like_that() -> None:
    """Each example in the table, and the advice below it, gives the tags that stand beside it."""
    text = read("hashtags.md")
    rows = re.findall(r"^\| `(.+)` \| ([a-z0-9 -]*)\|$", text.split("| you write | tags |")[1].split("\n\n")[0], re.MULTILINE)
    assert len(rows) > 5
    assert {message: parse_tags(message) for message, _ in rows} == {message: tuple(tags.split()) for message, tags in rows}
    advice = text.split("## Put the tag on a plain line")[1]
    assert parse_tags(FENCE.findall(advice)[0][1]) == ("release",)


@pytest.mark.requirement("DOC-1", "LBL-1", "IDX-5")
def test_every_page_that_speaks_of_tags_leads_to_their_page() -> None:
    """Whoever meets hashtags in the README, the tutorial or the list of commands finds the page on them."""
    for name in ("README.md", "docs/tutorial.md", "docs/commands.md"):
        assert "hashtags.md)" in (ROOT / name).read_text(), name


@pytest.mark.requirement("NEW-3")
def test_the_readme_is_short_and_begins_with_what_a_newcomer_needs() -> None:
    """At most 150 lines; the two commands and a transcript stand within the first 25."""
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= 150
    top = "\n".join(lines[:25])
    assert "make demo" in top
    assert "make test" in top
    said = re.findall(r"^      (hana|hayate): ", top, re.MULTILINE)
    assert said == ["hana", "hayate"] * 3


@pytest.mark.requirement("NEW-3", "STO-1")
def test_the_unit_starts_the_bot_as_the_page_says() -> None:
    """The service's command exists, no restart tries what none mends, its home is the page's and closed, and the page names it."""
    unit = configparser.RawConfigParser(strict=True, delimiters=["="])
    unit.optionxform = str  # type: ignore[assignment]  # names keep their case, as the library advises
    unit.read_string((ROOT / "deploy" / "hayate-matrix.service").read_text())
    service = unit["Service"]
    program, *arguments = shlex.split(service["ExecStart"])
    parse(arguments)
    assert service["Restart"] == "on-failure"
    kinds = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if kind in {errors.SettingsError, errors.AccountError}]
    assert {int(code) for code in service["RestartPreventExitStatus"].split()} == {kind.exit_code for kind in kinds}
    assert (service["UMask"], service["StateDirectoryMode"]) == ("0077", "0700")
    page = read("how-to/operate.md")
    home = service["Environment"].partition("=")[2]
    assert home == f"/var/lib/{service['StateDirectory']}"
    for name in (
        home,
        str(Path(program).parents[1]),
        f" {service['User']}\n",
        "deploy/hayate-matrix.service",
        "deploy/requirements-run.txt",
    ):
        assert name in page, name
    for line in re.findall(r"-r (\S+)", page):
        assert (ROOT / line).exists()
    assert "deploy/hayate-matrix.service" in (ROOT / "README.md").read_text()


def test_the_commands_that_take_rooms_are_named() -> None:
    """The reference says of just those commands that they take `--rooms` which do."""
    takes = []
    for name, one in get_command(app).commands.items():  # type: ignore[attr-defined]  # a typer app is a group
        for full, inner in {f"{name} {part}": known for part, known in getattr(one, "commands", {}).items()}.items() or [(name, one)]:
            takes += [full] if any("--rooms" in option.opts for option in inner.params) else []
    sentence = next(part for part in " ".join(read("commands.md").split()).split("; ") if "`--rooms LIST`" in part)
    assert sorted(re.findall(r"`([a-z ]+)`", sentence)) == sorted(takes)


@pytest.mark.requirement("ROOM-5", "NEW-3")
def test_what_is_said_in_a_room_mentions_the_bot() -> None:
    """A request in a transcript works when it is typed as it stands; the page on rooms says how to mention, and what the default is."""
    for name, people in (("README.md", "hana"), ("docs/hashtags.md", "ann")):
        said = re.findall(rf"^ *{people}: +(.*)$", (ROOT / name).read_text(), re.MULTILINE)
        assert said
        assert [text for text in said if not text.startswith(("@", "!", "/"))] == []
    page = " ".join(read("how-to/allowlist.md").split())
    assert "pick its name from the list" in page
    assert f'`matrix.trigger` is `"{Settings().matrix.trigger}"` by default' in page


@pytest.mark.requirement("NEW-3", "ROOM-1")
@pytest.mark.parametrize("name", ["README.md", "docs/tutorial.md"])
def test_a_first_start_has_its_rooms_in_the_file(name: str) -> None:
    """Who follows the page never has a list that the next start, or doctor, does not know."""
    before, *after = re.split(r"^\$ (?:\.venv/bin/)?hayate-matrix run$", (ROOT / name).read_text(), maxsplit=1, flags=re.MULTILINE)
    assert after
    files = [tomllib.loads(block) for kind, block in FENCE.findall(before.rpartition("```console")[0]) if kind == "toml"]
    assert any(file["matrix"].get("rooms") and file["matrix"].get("people") for file in files)
    assert "run --rooms" not in (ROOT / name).read_text()


@pytest.mark.requirement("E2E-6", "DOC-1")
@pytest.mark.parametrize("page", ["tutorial.md", "settings.md", "how-to/encryption.md"])
def test_whoever_is_not_heard_reads_why(page: str) -> None:
    """Where devices are spoken of it stands that the bot hears verified sessions alone, not only that others get no keys."""
    text = " ".join(read(page).split())
    assert re.search(r"\b(?:are|not) heard\b.{,150}\bverif|\bverified\b.{,40}\bbot hears only those\b", text)


@pytest.mark.requirement("STO-7", "ROOM-1")
@pytest.mark.parametrize("page", ["commands.md", "how-to/operate.md"])
def test_both_pages_on_restoring_say_that_settings_are_not_in_a_backup(page: str) -> None:
    """Who restores as a page says has been told to bring the settings along, and what happens without them."""
    text = " ".join(read(page).split())
    assert "a copy of `hayate.toml`" in text
    assert re.search(r"until `matrix\.rooms` is said", text)


@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "decisions").glob("*.md")), ids=lambda page: page.name)
def test_a_decision_is_short(page: Path) -> None:
    """A decision is read in a minute: at most forty lines, with what it was decided against."""
    text = page.read_text()
    assert len(text.splitlines()) <= 40
    assert "**Instead of**" in text


def test_ci_runs_the_names_that_everybody_uses() -> None:
    """CI does nothing but call the Makefile's check and test, and it is bounded in time."""
    text = (ROOT / ".ci" / "run").read_text()
    assert re.search(r"timeout \d+ make check", text)
    assert re.search(r"timeout \d+ make test\n?$", text)
