"""A proxy between a client and its homeserver that fails as it is told: `proxy.fails(bad_gateway(), path="*/sync*", times=3)`.

It runs in a thread of its own, so that a blocked test doesn't stop it, and records every request with its time.
"""

from __future__ import annotations

import asyncio
import dataclasses
import fnmatch
import json
import threading
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import TYPE_CHECKING, Any, Literal, Self

import aiohttp
from aiohttp import web

if TYPE_CHECKING:
    from collections.abc import Callable

_HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "host", "content-encoding"}
_PAGE = "<html><head><title>502 Bad Gateway</title></head><body><h1>Bad Gateway</h1></body></html>"


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What happens to a request; made by the functions below."""

    name: str
    status: int | None = None
    """An answer without asking the homeserver."""
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    ends: Literal["", "refuse", "hang", "lose", "cut"] = ""
    keep_bytes: int = 0
    wait_s: float = 0.0
    date_shift: timedelta | None = None
    change: Callable[[Any], Any] | None = None


def rate_limited(retry_after_s: float | None = None, *, where: Literal["header", "body"] = "header") -> Fault:
    """429, with the time in the `Retry-After` header, in the body as older servers do, or not at all."""
    body: dict[str, Any] = {"errcode": "M_LIMIT_EXCEEDED", "error": "Too Many Requests"}
    headers = {"Content-Type": "application/json"}
    if retry_after_s is not None and where == "header":
        headers["Retry-After"] = str(int(retry_after_s))
    elif retry_after_s is not None:
        body["retry_after_ms"] = int(retry_after_s * 1000)
    return Fault(name="429", status=429, body=json.dumps(body).encode(), headers=headers)


def bad_gateway(status: int = 502) -> Fault:
    """An error page of a gateway."""
    return Fault(name=f"{status} html", status=status, body=_PAGE.encode(), headers={"Content-Type": "text/html"})


def page_with_200() -> Fault:
    """A page of HTML under status 200, as a captive portal gives."""
    return dataclasses.replace(bad_gateway(200), name="200 html")


def server_error(status: int = 500) -> Fault:
    """A Matrix error with a 5xx status."""
    body = json.dumps({"errcode": "M_UNKNOWN", "error": "Internal server error"}).encode()
    return Fault(name=str(status), status=status, body=body, headers={"Content-Type": "application/json"})


def unknown_token(*, soft_logout: bool = False) -> Fault:
    """401 `M_UNKNOWN_TOKEN`."""
    body = json.dumps({"errcode": "M_UNKNOWN_TOKEN", "error": "Unrecognised access token", "soft_logout": soft_logout}).encode()
    return Fault(name="401", status=401, body=body, headers={"Content-Type": "application/json"})


def hangs() -> Fault:
    """The connection stays open and nothing comes, until the rule ends: then it is dropped."""
    return Fault(name="hang", ends="hang")


def refuses() -> Fault:
    """The connection is closed before the homeserver hears of it."""
    return Fault(name="refuse", ends="refuse")


def loses_answer() -> Fault:
    """The homeserver does what was asked, and its answer never arrives."""
    return Fault(name="lost answer", ends="lose")


def cuts_body(keep_bytes: int = 20) -> Fault:
    """The connection breaks after `keep_bytes` of the body."""
    return Fault(name="cut", ends="cut", keep_bytes=keep_bytes)


def delays(wait_s: float) -> Fault:
    """The answer comes `wait_s` later."""
    return Fault(name="delay", wait_s=wait_s)


def shifts_clock(by: timedelta) -> Fault:
    """The `Date` header of the answer is wrong by that much."""
    return Fault(name="clock", date_shift=by)


def changes(change: Callable[[Any], Any]) -> Fault:
    """The parsed JSON of the answer goes through `change`."""
    return Fault(name="change", change=change)


@dataclass
class Rule:
    """One fault and where it applies; `end()` it, or it ends after `times` requests."""

    fault: Fault
    method: str
    path: str
    left: int | None
    hits: int = 0
    is_over: bool = False

    def end(self) -> None:
        """Let requests through again, and drop those that hang."""
        self.left, self.is_over = 0, True

    def _takes(self, method: str, path: str) -> bool:
        if self.left == 0 or self.method not in ("*", method) or not fnmatch.fnmatchcase(path, self.path):
            return False
        self.hits += 1
        if self.left is not None:
            self.left -= 1
        return True


@dataclass(frozen=True, slots=True)
class Seen:
    """One request that came: when (monotonic seconds), what, and which fault it met."""

    at: float
    method: str
    path: str
    fault: str | None
    body: bytes = b""


class FaultProxy:
    """`with FaultProxy(homeserver.url) as proxy:`; clients use `proxy.url`."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.url = ""
        self.requests: list[Seen] = []
        self._rules: list[Rule] = []
        self._lock = threading.Lock()
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fault proxy", daemon=True)
        self._stopping: asyncio.Event | None = None

    def __enter__(self) -> Self:
        """Start it."""
        self._thread.start()
        if not self._ready.wait(10):
            message = "the proxy did not start within 10 s"
            raise RuntimeError(message)
        return self

    def __exit__(self, *_: object) -> None:
        """Stop it; hanging requests are closed."""
        stopping = self._stopping
        if stopping is not None:
            self._loop.call_soon_threadsafe(stopping.set)
        self._thread.join(10)

    def fails(self, fault: Fault, *, method: str = "*", path: str = "*", times: int | None = None) -> Rule:
        """Apply `fault` to requests whose method and path (shell pattern, with the query) match, `times` times or until `end()`."""
        rule = Rule(fault, method, path, times)
        with self._lock:
            self._rules.insert(0, rule)
        return rule

    def heals(self) -> None:
        """End every fault."""
        with self._lock:
            for rule in self._rules:
                rule.end()
            self._rules.clear()

    def seen(self, method: str = "*", path: str = "*", *, since: float = 0.0) -> list[Seen]:
        """Return the requests that match, from `since` (monotonic seconds) on."""
        return [
            one for one in list(self.requests) if one.at >= since and method in ("*", one.method) and fnmatch.fnmatchcase(one.path, path)
        ]

    def rate(self, *, since: float, until: float | None = None) -> float:
        """Return how many requests a second came that met a fault."""
        end = time.monotonic() if until is None else until
        met = [one for one in list(self.requests) if since <= one.at <= end and one.fault is not None]
        return len(met) / max(end - since, 1e-9)

    # --- the thread

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serve())
        finally:
            self._loop.close()

    async def _serve(self) -> None:
        self._stopping = asyncio.Event()
        application = web.Application(client_max_size=1 << 28)
        application.router.add_route("*", "/{path:.*}", self._handle)
        runner = web.AppRunner(application, handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None), auto_decompress=True) as self._out:
            self._ready.set()
            await self._stopping.wait()
            await runner.cleanup()

    def _find(self, method: str, path: str) -> Rule | None:
        with self._lock:
            return next((rule for rule in self._rules if rule._takes(method, path)), None)

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        rule = self._find(request.method, request.path_qs)
        fault = rule.fault if rule else None
        self.requests.append(Seen(time.monotonic(), request.method, request.path_qs, fault.name if fault else None, body))
        fault = fault or Fault(name="")
        while fault.ends == "hang" and rule is not None and not rule.is_over:  # noqa: ASYNC110  ended from another thread
            await asyncio.sleep(0.05)
        if fault.ends in ("hang", "refuse"):
            return self._drop(request)
        if fault.status is not None:
            return web.Response(status=fault.status, body=fault.body, headers=fault.headers)
        await asyncio.sleep(fault.wait_s)
        try:
            answer, content = await self._forward(request, body)
        except (aiohttp.ClientError, OSError):
            return self._drop(request)
        if fault.ends == "lose":
            return self._drop(request)
        if fault.change is not None:
            content = json.dumps(fault.change(json.loads(content))).encode()
        headers = {name: value for name, value in answer.headers.items() if name.lower() not in _HOP_BY_HOP}
        if fault.date_shift is not None:
            headers["Date"] = format_datetime(datetime.now(UTC) + fault.date_shift, usegmt=True)
        if fault.ends == "cut":
            return await self._cut(request, answer.status, headers, content, fault.keep_bytes)
        return web.Response(status=answer.status, body=content, headers=headers)

    async def _forward(self, request: web.Request, body: bytes) -> tuple[aiohttp.ClientResponse, bytes]:
        headers = {name: value for name, value in request.headers.items() if name.lower() not in _HOP_BY_HOP}
        async with self._out.request(
            request.method, self.target + request.raw_path, data=body or None, headers=headers, allow_redirects=False
        ) as answer:
            return answer, await answer.read()

    @staticmethod
    def _drop(request: web.Request) -> web.Response:
        if request.transport is not None:
            request.transport.abort()
        return web.Response()

    @staticmethod
    async def _cut(request: web.Request, status: int, headers: dict[str, str], content: bytes, keep: int) -> web.StreamResponse:
        answer = web.StreamResponse(status=status, headers={**headers, "Content-Length": str(len(content))})
        await answer.prepare(request)
        await answer.write(content[: min(keep, max(len(content) - 1, 0))])
        if request.transport is not None:
            request.transport.close()
        return answer
