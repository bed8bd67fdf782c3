"""Commands told from ordinary text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hayate_matrix.core.commands import COMMANDS, Command, parse_command


@pytest.mark.requirement("IN-8")
@pytest.mark.parametrize(
    ("text", "name", "arguments"),
    [
        ("!stop", "stop", ""),
        ("/stop", "stop", ""),
        ("//stop", "stop", ""),
        ("  !stop  ", "stop", ""),
        ("!STOP", "stop", ""),
        ("!steer  only the German ones ", "steer", "only the German ones"),
        ("!steer two\nlines", "steer", "two\nlines"),
    ],
)
def test_known_commands(text: str, name: str, arguments: str) -> None:
    """All three marks mean the same; blanks around don't matter."""
    assert parse_command(text) == Command(name=name, arguments=arguments)


@pytest.mark.requirement("IN-8")
@pytest.mark.parametrize(
    "text", ["", "!", "/", "//", "! stop", "stop", "!stopp", "!!stop", "///stop", "/me waves", "please !stop", "!stop!", "/\n"]
)
def test_ordinary_text(text: str) -> None:
    """What is no known word right behind the mark is text."""
    assert parse_command(text) is None


@given(st.text())
def test_no_text_breaks_the_parser(text: str) -> None:
    """Any text is a command or none."""
    found = parse_command(text)
    assert found is None or found.name in COMMANDS


def test_the_help_is_sorted() -> None:
    """The help lists the commands by name, each with the `!` form first."""
    assert list(COMMANDS) == sorted(COMMANDS)
    assert all(usage.line.startswith(f"!{name}") and usage.example.startswith(f"!{name}") for name, usage in COMMANDS.items())
