"""What all tests share: no socket leaves this machine."""

from __future__ import annotations

import ipaddress
import logging
import sys
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest
import structlog

from hayate_matrix import log

if TYPE_CHECKING:
    from collections.abc import Iterator

# A slow machine is no fault: no test asserts a time, and neither does hypothesis.
hypothesis.settings.register_profile("ours", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("ours")

pytest_plugins = ["tests.support.plugin", "tests.support.postgres"]

_EVENTS = frozenset({"socket.connect", "socket.sendto", "socket.sendmsg", "socket.getaddrinfo"})


def _is_loopback(address: object) -> bool:
    if not isinstance(address, tuple):
        return True  # a path: a Unix socket
    host = str(address[0])
    if host in {"", "localhost"}:
        return True
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False


def _forbid_the_network(event: str, arguments: tuple[Any, ...]) -> None:
    """Fail where anything but this machine is reached for; an audit hook sees every connection that Python makes, asyncio's too."""
    if event not in _EVENTS:
        return
    address = (arguments[0],) if event == "socket.getaddrinfo" else arguments[1]
    if address is not None and address != (None,) and not _is_loopback(address):
        # pytest's own outcome is no Exception: a loop that waits out network errors does not swallow it.
        pytest.fail(f"A test tried to reach {address!r}. Tests speak to loopback alone: start what they need on 127.0.0.1.")


sys.addaudithook(_forbid_the_network)


@pytest.fixture(autouse=True)
def _log_as_before() -> Iterator[None]:
    """Undo what a test that starts the program, or reads its log, did to the log of this process."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()
    log._hidden.clear()
