"""Which answers count, what is waited for, and how long."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

from hayate_matrix.errors import HomeserverDown, MatrixError, RateLimited
from hayate_matrix.matrix.http import LAST_PAUSE_S, Http
from tests.support.edge import QuickClock
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.support.fabricated import FabricatedHomeserver


@pytest_asyncio.fixture
async def clock() -> QuickClock:
    """A clock on which a minute is a second."""
    return QuickClock(60)


@pytest_asyncio.fixture
async def http(server: FabricatedHomeserver, clock: QuickClock) -> AsyncIterator[Http]:
    """The connection under test."""
    made = Http(server.url, clock, access_token="t", jitter=0.0)
    yield made
    await made.close()


@pytest.mark.requirement("OUT-2", "REL-3")
@pytest.mark.parametrize(
    ("status", "body", "outcome"),
    [
        (200, "<html></html>", HomeserverDown),
        (200, "", HomeserverDown),
        (200, "[]", HomeserverDown),
        (502, "<html></html>", HomeserverDown),
        (404, "<html></html>", HomeserverDown),
        (401, "<html></html>", HomeserverDown),
        (500, {"errcode": "M_UNKNOWN"}, HomeserverDown),
        (503, {}, HomeserverDown),
        (400, {"error": "no code"}, HomeserverDown),
        (302, "", HomeserverDown),
        (401, {"errcode": "M_USER_LOCKED", "error": "x"}, HomeserverDown),
        (429, "", RateLimited),
        (429, {"errcode": "M_LIMIT_EXCEEDED"}, RateLimited),
        (400, {"errcode": "M_BAD_JSON", "error": "x"}, MatrixError),
        (403, {"errcode": "M_FORBIDDEN"}, MatrixError),
    ],
)
async def test_only_an_answer_that_is_matrix_counts(
    server: FabricatedHomeserver, http: Http, status: int, body: Any, outcome: type[Exception]
) -> None:
    """A page is no answer, whatever its status; only a Matrix error code is a refusal. The text has no name that only the code knows."""
    server.answers("GET", "*/x", body, status=status)
    with pytest.raises(outcome) as caught:
        await http.request("inner.name", "GET", "/x", retry=False)
    assert "inner" not in str(caught.value)


@pytest.mark.requirement("OUT-2")
@pytest.mark.parametrize(
    ("headers", "body", "wait_s"),
    [
        ({"Retry-After": "7"}, {"errcode": "M_LIMIT_EXCEEDED", "retry_after_ms": 1}, 7.0),
        ({}, {"errcode": "M_LIMIT_EXCEEDED", "retry_after_ms": 2500}, 2.5),
        ({}, {"errcode": "M_LIMIT_EXCEEDED", "retry_after_ms": 2500.5}, 2.5005),
        ({"Retry-After": "soon"}, {"errcode": "M_LIMIT_EXCEEDED"}, None),
        ({"Date": "Tue, 01 Dec 2026 10:00:00 GMT", "Retry-After": "Tue, 01 Dec 2026 10:00:30 GMT"}, {"errcode": "M_LIMIT_EXCEEDED"}, 30.0),
        ({}, {"errcode": "M_LIMIT_EXCEEDED", "retry_after_ms": True}, None),
    ],
)
async def test_rate_limit_names_its_time(
    server: FabricatedHomeserver, http: Http, headers: dict[str, str], body: dict[str, Any], wait_s: float | None
) -> None:
    """Seconds, a date, or milliseconds in the body, in that order."""
    server.answers("GET", "*/x", body, status=429, headers=headers)
    with pytest.raises(RateLimited) as caught:
        await http.request("test", "GET", "/x", retry=False)
    assert caught.value.wait_s == wait_s


@pytest.mark.requirement("OUT-2", "REL-3")
async def test_pauses_double_up_to_a_minute(server: FabricatedHomeserver, http: Http, clock: QuickClock) -> None:
    """1 s, doubled, at most 60 s, for as long as it takes."""
    times: list[float] = []

    def note(_request: Any, _body: Any) -> Any:
        from aiohttp import web  # noqa: PLC0415

        times.append(clock.monotonic())
        return web.Response(status=502, text="<html>") if len(times) < 9 else web.json_response({"done": True})

    server.handles("GET", "*/x", note)
    assert await http.request("test", "GET", "/x") == {"done": True}
    pauses = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert all(pause >= least for pause, least in zip(pauses, [1, 2, 4, 8, 16, 32, LAST_PAUSE_S, LAST_PAUSE_S], strict=True))
    assert pauses[-1] < LAST_PAUSE_S * 2


@pytest.mark.requirement("REL-3")
@pytest.mark.parametrize(
    ("status", "headers", "outcome"),
    [(502, {}, HomeserverDown), (429, {"Retry-After": "1"}, RateLimited), (429, {"Retry-After": "0"}, RateLimited)],
    ids=["502", "limit of 1 s", "limit of 0 s"],
)
async def test_many_callers_together_ask_at_most_twice_a_second(
    server: FabricatedHomeserver, http: Http, clock: QuickClock, status: int, headers: dict[str, str], outcome: type[Exception]
) -> None:
    """Forty rooms that want to send do not storm a homeserver in trouble."""
    times: list[float] = []

    def note(_request: Any, _body: Any) -> Any:
        from aiohttp import web  # noqa: PLC0415

        times.append(clock.monotonic())
        return web.Response(status=status, headers=headers, text="<html>")

    failing = server.handles("*", "*/x*", note)
    with pytest.raises(outcome):
        await http.request("test", "GET", "/x", retry=False)
    began = clock.monotonic()
    callers = [asyncio.create_task(http.request("test", "PUT", f"/x{number}")) for number in range(40)]
    await eventually(lambda: clock.monotonic() - began >= 60)
    failing.end()
    for caller in callers:
        caller.cancel()
    await asyncio.gather(*callers, return_exceptions=True)
    assert len([at for at in times if at - began < 60]) <= 2 * 60


@pytest.mark.requirement("REL-3")
async def test_server_that_hangs_or_cuts_its_answer_is_asked_again(server: FabricatedHomeserver, http: Http) -> None:
    """Every request has a bound, also the first (audit 1.5)."""
    tries: list[int] = []

    async def hang(request: Any, _body: Any) -> Any:
        from aiohttp import web  # noqa: PLC0415

        tries.append(1)
        if len(tries) == 1:
            await asyncio.sleep(3600)
        if len(tries) == 2:
            cut = web.StreamResponse(headers={"Content-Length": "1000", "Content-Type": "application/json"})
            await cut.prepare(request)
            await cut.write(b'{"a": ')
            request.transport.close()
            return cut
        return web.json_response({"done": True})

    server.handles("GET", "*/x", hang)
    assert await http.request("test", "GET", "/x", timeout_s=0.3) == {"done": True}
    assert len(tries) == 3


@pytest.mark.requirement("IN-3")
async def test_servers_clock_is_known_from_its_answers(server: FabricatedHomeserver, http: Http) -> None:
    """An hour between the clocks does not matter: ages are taken from the server's."""
    server.answers("GET", "*/x", {}, headers={"Date": "Tue, 01 Dec 2026 10:00:00 GMT"})
    await http.request("test", "GET", "/x")
    assert abs(http.server_now_ms() - 1796119200000) < 120_000


@pytest.mark.requirement("ACC-3")
async def test_proxy_of_the_environment_is_used_unless_the_homeserver_is_left_out(
    server: FabricatedHomeserver, clock: QuickClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`http_proxy` and `no_proxy` mean for the bot what they mean for other programs."""
    monkeypatch.setenv("http_proxy", server.url)
    monkeypatch.setenv("no_proxy", "direct.test")
    seen: list[str] = []
    server.handles("GET", "*", lambda request, _body: seen.append(str(request.url)))
    through = Http("http://matrix.test", clock)
    with pytest.raises((MatrixError, HomeserverDown)):
        await through.request("test", "GET", "/x", retry=False)
    await through.close()
    assert seen
    direct = Http("http://direct.test:1", clock)
    monkeypatch.setattr("socket.getaddrinfo", _refuse)
    with pytest.raises(HomeserverDown):
        await direct.request("test", "GET", "/x", retry=False)
    await direct.close()
    assert len(seen) == 1


def _refuse(*_: Any, **__: Any) -> Any:
    raise OSError("no names here")


@pytest.mark.requirement("REL-3", "NEW-2")
async def test_rate_limit_is_told_until_an_answer_comes(server: FabricatedHomeserver, http: Http, clock: QuickClock) -> None:
    """Whoever looks just when the named time is over still sees that the account is limited; the next answer ends it."""
    limiting = server.answers("GET", "*/x", {"errcode": "M_LIMIT_EXCEEDED"}, status=429, headers={"Retry-After": "1"})
    with pytest.raises(RateLimited):
        await http.request("test", "GET", "/x", retry=False)
    clock.skip(30)
    assert (http.is_limited, http.was_limited) == (False, True)
    limiting.end()
    server.answers("GET", "*/x", {})
    await http.request("test", "GET", "/x")
    assert not http.was_limited
