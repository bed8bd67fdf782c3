"""Lines without secrets, whoever logs them."""

from __future__ import annotations

import io
import json
import logging
from typing import TYPE_CHECKING, Literal

import pytest

from hayate_matrix import log

if TYPE_CHECKING:
    from collections.abc import Callable

Form = Literal["text", "json"]
TOKEN = "syt_Ym90_abcdefghijklmnop_0a1B2c"
RECOVERY_KEY = "EsTc LW2K PGiF wKEA 3As5 g5c4 BXwk qeeJ ZJV8 Q9fu gUMN UE4d"


@pytest.fixture
def lines() -> Callable[..., str]:
    """Configure the log and return what is written."""
    out = io.StringIO()

    def start(form: Form = "text", level: Literal["debug", "info"] = "info") -> str:
        if not out.getvalue():
            log.configure(level, form, stream=out)
        return out.getvalue()

    return start


@pytest.mark.requirement("SEC-3")
@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize(
    "secret",
    [
        pytest.param({"access_token": "zq-1234"}, id="by its name"),
        pytest.param({"body": {"password": "zq-1234", "rows": [{"refresh_token": "zq-1234"}]}}, id="by a name inside"),
        pytest.param({"text": f"a token {TOKEN.replace('abcd', 'zq-1234')} in a text"}, id="by its form"),
        pytest.param({"text": "Authorization: Bearer zq-1234"}, id="a header"),
        pytest.param({"url": "postgresql://bot:zq-1234@db/x"}, id="in an address"),
        pytest.param({"text": '{"session_key": "zq-1234", "x": 1}'}, id="in JSON"),
        pytest.param({"error": ValueError("password=zq-1234")}, id="in an exception's text"),
        pytest.param({"text": "the key is my-zq-1234-key"}, id="known to be one"),
        pytest.param({"text": b"zq-1234"}, id="as bytes"),
    ],
)
def test_no_secret_reaches_a_line(lines: Callable[..., str], form: Form, secret: dict[str, object]) -> None:
    """Secrets are hidden by their name, by their form, and where they were handed over, in our lines and in others'."""
    log.hide("my-zq-1234-key")
    log.hide("zq-1234") if isinstance(secret.get("text"), bytes) else None
    lines(form)
    log.get_logger("hayate_matrix.x").warning("something", room="!a:b.org", **secret)
    logging.getLogger("library").warning("something %s", secret)
    assert "zq-1234" not in lines()
    assert lines().count(log.HIDDEN) >= 2
    assert "!a:b.org" in lines()


@pytest.mark.requirement("SEC-3")
@pytest.mark.parametrize("form", ["text", "json"])
def test_no_secret_reaches_a_traceback(lines: Callable[..., str], form: Form) -> None:
    """What an exception quotes is hidden in its traceback too, of ours and of a library."""
    lines(form)
    try:
        message = f"refused: access_token={TOKEN} recovery {RECOVERY_KEY}"
        raise RuntimeError(message)
    except RuntimeError:
        log.get_logger("hayate_matrix.x").exception("failed")
        logging.getLogger("library").exception("failed")
    assert "RuntimeError" in lines()
    assert TOKEN not in lines()
    assert "UE4d" not in lines()


@pytest.mark.requirement("SEC-3")
@pytest.mark.parametrize("name", ["nio.events.misc", "nio.responses"])
def test_what_nio_could_not_validate_is_withheld(lines: Callable[..., str], name: str) -> None:
    """Where validation fails nio prints messages in clear and keys; neither is ever seen."""
    lines("text", "debug")
    logger = logging.getLogger(name)
    for level in (logging.DEBUG, logging.WARNING, logging.ERROR):
        logger.log(level, "Error validating event: %s", "the plaintext of a message")
    assert "plaintext" not in lines()
    assert lines().count("withheld") == 1


@pytest.mark.requirement("SEC-3")
@pytest.mark.parametrize("name", ["peewee", "sqlalchemy.engine", "nio.crypto"])
def test_statements_of_libraries_are_not_logged_even_at_debug(lines: Callable[..., str], name: str) -> None:
    """Statements hold values; the level debug is about our own work."""
    lines("text", "debug")
    logging.getLogger(name).info("INSERT INTO olmsessions VALUES ('pickle')")
    log.get_logger("hayate_matrix.x").debug("a step")
    assert "pickle" not in lines()
    assert "a step" in lines()


def test_lines_are_json_where_that_is_asked_for(lines: Callable[..., str]) -> None:
    """Each line is one object with level, time, logger and event, a library's too."""
    lines("json")
    log.get_logger("hayate_matrix.x").info("started", rooms=3)
    logging.getLogger("library").warning("careful")
    ours, theirs = (json.loads(line) for line in lines().splitlines())
    assert (ours["event"], ours["rooms"], ours["level"], ours["logger"]) == ("started", 3, "info", "hayate_matrix.x")
    assert (theirs["event"], theirs["level"], theirs["logger"]) == ("careful", "warning", "library")
    assert ours["timestamp"].endswith("Z")


def test_what_is_no_secret_stays_readable() -> None:
    """Ids, transaction ids and ordinary words are not blotted out."""
    text = "event $abcDEF0123456789abcDEF0123456789abcDEF01234 in !31hneApxJ_1o-63DmFrpeqnkFfWppnzWso1JvH3ogLM, token ring, next try in 3 s"
    assert log.redact(text) == text


def test_loggers_of_libraries_stay_what_the_libraries_made_them() -> None:
    """A library that gives its loggers a class of its own has it still after ours was set up."""

    class Theirs(logging.Logger):
        pass

    before = logging.getLoggerClass()
    logging.setLoggerClass(Theirs)
    try:
        log.configure()
        assert logging.getLoggerClass() is Theirs
    finally:
        logging.setLoggerClass(before)
