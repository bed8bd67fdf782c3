"""Structured lines without secrets."""

from __future__ import annotations

import structlog


def get_logger(name: str) -> structlog.stdlib.BoundLogger:
    """Return the logger of a module; its first argument is the event, the rest are named values."""
    return structlog.get_logger(name)  # type: ignore[no-any-return]
