"""What all tests share: no socket leaves this machine."""

from __future__ import annotations

import ipaddress
import sys
from typing import Any

pytest_plugins = ["tests.support.plugin"]

_EVENTS = frozenset({"socket.connect", "socket.sendto", "socket.sendmsg"})


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
    """Stop a connection to anywhere but this machine; an audit hook sees every one that Python makes, asyncio's too."""
    if event in _EVENTS and arguments[1] is not None and not _is_loopback(arguments[1]):
        message = f"A test tried to reach {arguments[1]!r}. Tests speak to loopback alone: start what they need on 127.0.0.1."
        raise PermissionError(message)


sys.addaudithook(_forbid_the_network)
