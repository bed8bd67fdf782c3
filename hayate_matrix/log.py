"""Structured lines without secrets.

Promise: no token, password, key or recovery key reaches a line, whoever logs it: our code, a library, a traceback (SEC-3).
How: every line, ours or a library's, ends in one processor that hides values by their name, by their form, and those handed to `hide`.
Not here: what people wrote; no caller logs it, and libraries that would are silenced below.
"""

from __future__ import annotations

import logging
import re
import sys
from typing import TYPE_CHECKING, Any, Literal, TextIO

import structlog

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from structlog.typing import Processor

HIDDEN = "[hidden]"

_NAMES = re.compile(
    r"(?:^|_)(?:token|password|passphrase|secret|authorization|private|pickle|recovery_key|session_key|seed|mac)$", re.IGNORECASE
)
"""Names whose value is a secret, whatever it looks like."""
_FORMS = [
    (re.compile(r"\b(?:syt|syr|syl|mat|mct|mcr)_[A-Za-z0-9_\-]{8,}"), HIDDEN),  # access and refresh tokens of Synapse and of MAS
    (re.compile(r"(?i)(\bbearer\s+)[^\s\"',}]+"), rf"\1{HIDDEN}"),
    (re.compile(r"(://[^/\s:@]*:)[^/\s@]+(@)"), rf"\1{HIDDEN}\2"),  # user:password in an address
    (
        re.compile(
            r"(?i)([\"']?\b(?:[a-z]+_)?(?:token|password|passphrase|secret|session_key|recovery_key|pickle_key)[\"']?\s*[=:]\s*[\"']?)"
            r"(?!None\b|null\b|\[hidden)[^\s\"'&,;})]+"
        ),
        rf"\1{HIDDEN}",
    ),
    (re.compile(r"\bE[sS][A-Za-z1-9]{2}(?: ?[A-HJ-NP-Za-km-z1-9]{4}){11}\b"), HIDDEN),  # a recovery key: base58, groups of four
    (
        re.compile(r"(?<![A-Za-z0-9+/])[A-Za-z0-9+/]{160,}={0,2}(?![A-Za-z0-9+/])"),
        HIDDEN,
    ),  # exported room keys and pickles are longer than any id
]

_WITHHELD = frozenset({"nio.events.misc", "nio.responses"})
"""These print what failed to validate: a decrypted message, or a room key."""
_QUIET = ("nio", "markdown_it", "peewee", "sqlalchemy", "alembic", "aiohttp.access", "asyncio")
"""Libraries whose lines below a warning hold statements with values, or say nothing to an operator."""

_hidden: set[str] = set()


def get_logger(name: str) -> structlog.stdlib.BoundLogger:
    """Return the logger of a module; its first argument is the event, the rest are named values."""
    return structlog.get_logger(name)  # type: ignore[no-any-return]


def hide(secret: str) -> None:
    """Keep this very text out of every line from now on; what is shorter than six characters is not looked for."""
    if len(secret) >= 6:  # noqa: PLR2004  shorter ones would blot out ordinary words
        _hidden.add(secret)


def redact(text: str) -> str:
    """Return `text` without what is, or looks like, a secret."""
    for secret in _hidden:
        text = text.replace(secret, HIDDEN)
    for form, substitute in _FORMS:
        text = form.sub(substitute, text)
    return text


def configure(
    level: Literal["debug", "info", "warning", "error"] = "info",
    form: Literal["text", "json"] = "text",
    *,
    stream: TextIO | None = None,
) -> None:
    """Send every line, ours and the libraries', to `stream` (standard error) in one form; a second call replaces the first."""
    before: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    out = stream or sys.stderr
    # A traceback becomes text before the redaction, so that what an exception quotes is redacted too.
    render: list[Processor] = [
        structlog.stdlib.ProcessorFormatter.remove_processors_meta,
        structlog.processors.format_exc_info,
        _redact_event,
    ]
    if form == "json":
        render.append(structlog.processors.JSONRenderer(ensure_ascii=False))
    else:
        render.append(structlog.dev.ConsoleRenderer(colors=out.isatty(), exception_formatter=structlog.dev.plain_traceback))
    others = logging.getLoggerClass()
    factory = structlog.stdlib.LoggerFactory()  # puts a class of its own in the place of the one that all libraries' loggers are made of
    logging.setLoggerClass(others)
    structlog.configure(
        processors=[structlog.stdlib.filter_by_level, *before, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=factory,
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,  # a module's logger made before this call obeys it too
    )
    handler = logging.StreamHandler(out)
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(foreign_pre_chain=before, processors=render))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)
    for name in _WITHHELD:
        logger = logging.getLogger(name)
        logger.setLevel(logging.ERROR)
        logger.filters[:] = [_withhold]
    # uvicorn brings handlers of its own unless it is started with log_config=None; then its lines come here.
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access"):
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True


def _withhold(record: logging.LogRecord) -> bool:
    record.msg, record.args, record.exc_info = "an event or answer did not validate; its content is withheld", (), None
    return True


def _redact_event(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:  # noqa: ANN401  structlog's signature
    return {name: HIDDEN if _NAMES.search(name) and value else _redact_value(value) for name, value in event.items()}


def _redact_value(value: object) -> object:
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, bool | int | float | None):
        return value
    if isinstance(value, dict):
        return {name: HIDDEN if _NAMES.search(str(name)) and inner else _redact_value(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_redact_value(inner) for inner in value]
    return redact(repr(value))
