"""One policy for every request to the homeserver.

Promise: a request is repeated until the homeserver has really answered it, and a homeserver in trouble is asked at most twice a second.
How: an answer counts only where its status and its body agree that it is Matrix; everything else is weather and waits, each caller
doubling its own pause from 1 s to 60 s, all callers together keeping `_FAILING_SPACING_S` apart until something succeeds again.
A rate limit is one budget of the account: answers wait for it, typing and receipts are left out while it lasts.
Not here: what a Matrix error code means for the work at hand; the caller reads `MatrixError.errcode`.
"""

from __future__ import annotations

import asyncio
import json
import random
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp

from hayate_matrix import __version__
from hayate_matrix.errors import HomeserverDown, MatrixError, RateLimited, WaitError
from hayate_matrix.log import get_logger

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from datetime import datetime

    from hayate_matrix.core.clock import Clock

_log = get_logger(__name__)

FIRST_PAUSE_S = 1.0
"""First pause after a failure; doubled up to `LAST_PAUSE_S`. Both numbers are the specification's (OUT-2)."""
LAST_PAUSE_S = 60.0
_FAILING_SPACING_S = 1.0
"""While the homeserver fails, requests start this far apart: at most two a second (REL-3), since aiohttp repeats one on a broken connection
by itself."""
_LONGEST_LIMIT_S = 3600.0
"""A rate limit that names more than an hour is asked again after an hour: a wrong number must not silence the bot."""
_DEFAULT_LIMIT_S = 5.0
"""Pause after a 429 that names no time."""
MAX_ANSWER_BYTES = 256 * 1024 * 1024
"""An answer larger than this is not read: more than any sync of an account with a thousand rooms (10.7 MB measured)."""
_LOOK = "See whether it runs, whether its address is right, and what stands before it."
_PARSE_ASIDE_BYTES = 256 * 1024
"""Answers larger than this are parsed in a thread, so that timers and other requests go on between."""


@dataclass(slots=True)
class Health:
    """What the last requests told about the homeserver; shown by `doctor`, through the status file."""

    last_error: str = ""
    last_code: str = ""
    last_error_at: datetime | None = None
    failures: int = 0


class Http:
    """The one connection to the homeserver; `access_token` may be replaced between requests."""

    def __init__(self, homeserver: str, clock: Clock, *, access_token: str = "", jitter: float = 0.1) -> None:
        self.homeserver = homeserver.rstrip("/")
        self.access_token = access_token
        self.health = Health()
        self.server_offset_s = 0.0
        """The server's clock minus this machine's, in seconds, from the last `Date` header."""
        self._clock = clock
        self._jitter = jitter
        self.on_unknown_token: Callable[[str, MatrixError], Awaitable[bool]] | None = None
        """Asked with a token that the homeserver no longer knows; True: there is a new one, and the request goes again."""
        self._session: aiohttp.ClientSession | None = None
        self._next_start_at = 0.0
        self._limited_until = 0.0
        self._is_refused = False
        """Whether the last answer was a rate limit."""

    @property
    def is_failing(self) -> bool:
        """Whether the last answer was no answer: long polls are pointless until one succeeds."""
        return self.health.failures > 0

    @property
    def was_limited(self) -> bool:
        """Whether the last answer was a rate limit, also in the moment in which its time is over and the next try is under way."""
        return self._is_refused

    @property
    def is_limited(self) -> bool:
        """Whether the account's budget is used up: what is no answer to a person is left out."""
        return self._clock.monotonic() < self._limited_until

    def server_now_ms(self) -> int:
        """Return the homeserver's time in milliseconds since the epoch, as its last `Date` header told."""
        return int((self._clock.now().timestamp() + self.server_offset_s) * 1000)

    def make_anonymous(self) -> Http:
        """Return another connection to the same homeserver that sends no token and renews none: a login while requests are under way."""
        return Http(self.homeserver, self._clock, jitter=self._jitter)

    async def close(self) -> None:
        """Close the connections; requests after this open new ones."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def request(  # noqa: PLR0913 - one request has this many independent properties
        self,
        label: str,
        method: str,
        path: str,
        *,
        body: dict[str, Any] | bytes | None = None,
        query: dict[str, str] | None = None,
        timeout_s: float = 30.0,
        retry: bool = True,
        is_answer: bool = True,
        failing_query: dict[str, str] | None = None,
    ) -> dict[str, Any]:
        """Return the JSON object that the homeserver answered.

        Args:
            label: names the step, for the log and the crash tests; no error's text holds it.
            method: the HTTP method.
            path: from `/_matrix/` on, percent-encoded.
            body: the JSON body, or the bytes of a file; a POST or PUT without one sends `{}`.
            query: the query's parameters.
            timeout_s: bound on one try.
            retry: go on through weather and rate limits for as long as it takes; else raise them.
            failing_query: parameters that replace those of `query` while the homeserver fails: a long poll asks shortly then.
            is_answer: False for typing and receipts: while the account is limited they are not sent at all.

        Raises:
            MatrixError: the homeserver refused with a Matrix error code; decide by `errcode`.
            HomeserverDown: no real answer (only without `retry`).
            RateLimited: 429 (only without `retry`, or at once where `is_answer` is False).
        """
        pause_s = FIRST_PAUSE_S
        while True:
            if not is_answer and self.is_limited:
                raise RateLimited("The account is rate-limited; what is no answer is left out until then.")
            await self._take_turn(is_answer=is_answer)
            token = self.access_token
            asked = {**query, **failing_query} if query and failing_query and self.is_failing else query
            try:
                answer = await self._try_once(method, path, body, asked, timeout_s)
            except MatrixError as error:
                self._note_success()
                if error.errcode != "M_UNKNOWN_TOKEN" or self.on_unknown_token is None or not await self.on_unknown_token(token, error):
                    raise
            except WaitError as error:
                wait_s = self._note_failure(label, error, pause_s)
                if not retry:
                    raise
                await self._clock.sleep(wait_s)
                pause_s = min(pause_s * 2, LAST_PAUSE_S)
            else:
                self._note_success()
                return answer

    def _note_success(self) -> None:
        if self.health.failures:
            _log.info("homeserver answers again", failures=self.health.failures)
        self.health.failures = 0
        self._is_refused = False

    async def _take_turn(self, *, is_answer: bool) -> None:
        while self.is_failing or self._is_refused:
            now = self._clock.monotonic()
            if now >= self._next_start_at:
                self._next_start_at = now + _FAILING_SPACING_S
                return
            await self._clock.sleep(self._next_start_at - now + (0.0 if is_answer else _FAILING_SPACING_S))

    def _note_failure(self, label: str, error: WaitError, pause_s: float) -> float:
        self.health.last_error = str(error)
        self.health.last_code = error.code
        self.health.last_error_at = self._clock.now()
        now = self._clock.monotonic()
        if isinstance(error, RateLimited):
            wait_s = min(error.wait_s if error.wait_s is not None else _DEFAULT_LIMIT_S, _LONGEST_LIMIT_S)
            self._limited_until = max(self._limited_until, now + wait_s)
            self._is_refused = True
            _log.warning("rate limited", request=label, wait_s=round(wait_s, 1))
            # Nobody may ask again before: a limit of "0 s" would otherwise be asked in a tight loop.
            return max(wait_s, _FAILING_SPACING_S)
        self.health.failures += 1
        self._next_start_at = max(self._next_start_at, now + _FAILING_SPACING_S)
        wait_s = error.wait_s if error.wait_s is not None else pause_s
        if self.health.failures == 1 or pause_s >= LAST_PAUSE_S:
            _log.warning("homeserver does not answer", request=label, error=str(error), next_try_s=round(wait_s, 1))
        return wait_s * (1 + random.random() * self._jitter)  # noqa: S311 - spreads load, hides nothing

    async def _try_once(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | bytes | None,
        query: dict[str, str] | None,
        timeout_s: float,
    ) -> dict[str, Any]:
        session = self._open_session()
        headers = {"Accept": "application/json"}
        if self.access_token:
            headers["Authorization"] = f"Bearer {self.access_token}"
        data: bytes | None = None
        if isinstance(body, bytes):
            data = body
            headers["Content-Type"] = "application/octet-stream"
        elif method != "GET":
            data = json.dumps(body or {}, ensure_ascii=False, separators=(",", ":")).encode()
            headers["Content-Type"] = "application/json"
        try:
            async with session.request(
                method,
                self.homeserver + path,
                params=query,
                data=data,
                headers=headers,
                timeout=aiohttp.ClientTimeout(total=timeout_s),
                allow_redirects=False,
            ) as response:
                raw = await _read_bounded(response)
                self._note_date(response.headers.get("Date"))
                return await _classify(response, raw)
        except TimeoutError as error:
            text = f"{self.homeserver} did not answer within {timeout_s:g} s."
            raise HomeserverDown(text, remedy=_LOOK) from error
        except aiohttp.ClientConnectorCertificateError as error:
            text = f"The certificate of {self.homeserver} was refused: {error.certificate_error}."
            raise HomeserverDown(
                text, remedy="Check the certificate; another address is named at the login: hayate-matrix login --homeserver URL"
            ) from error
        except aiohttp.ClientConnectorError as error:
            text = f"{self.homeserver} can't be reached: {error.os_error.strerror or error.os_error}."
            raise HomeserverDown(text, remedy=_LOOK) from error
        except (aiohttp.ClientError, OSError) as error:
            text = f"The connection to {self.homeserver} failed: {type(error).__name__}: {str(error).rstrip('.')}."
            raise HomeserverDown(text, remedy=_LOOK) from error

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                headers={"User-Agent": f"hayate-matrix/{__version__}"},
                connector=aiohttp.TCPConnector(limit=32, enable_cleanup_closed=True),
                proxy=_find_proxy(self.homeserver),
            )
        return self._session

    def _note_date(self, date: str | None) -> None:
        if date is None:
            return
        try:
            server = parsedate_to_datetime(date)
        except ValueError:
            return
        self.server_offset_s = server.timestamp() - self._clock.now().timestamp()


def room_path(room_id: str, *parts: str) -> str:
    """Return the client API's path of something in a room, each part percent-encoded."""
    return "/".join(("/_matrix/client/v3/rooms", *(quote(part, safe="") for part in (room_id, *parts))))


def _find_proxy(homeserver: str) -> str | None:
    """Return the proxy that the environment names for the homeserver; once, since aiohttp's own look reads netrc before each request."""
    parts = urlsplit(homeserver)
    return None if proxy_bypass(parts.hostname or "") else getproxies().get(parts.scheme)


async def _read_bounded(response: aiohttp.ClientResponse) -> bytes:
    chunks: list[bytes] = []
    size = 0
    async for chunk in response.content.iter_any():
        size += len(chunk)
        if size > MAX_ANSWER_BYTES:
            raise HomeserverDown(f"An answer was larger than {MAX_ANSWER_BYTES} bytes and was not read.")
        chunks.append(chunk)
    return b"".join(chunks)


async def _classify(response: aiohttp.ClientResponse, raw: bytes) -> dict[str, Any]:
    """Return the object, or raise what the answer means; an answer that is no Matrix answer is never a success."""
    status = response.status
    try:
        parsed = json.loads(raw) if len(raw) < _PARSE_ASIDE_BYTES else await asyncio.to_thread(json.loads, raw)
    except (ValueError, RecursionError):
        parsed = None
    if status == 429:  # noqa: PLR2004 - Too Many Requests; a gateway may say it with a page
        raise RateLimited(
            "The homeserver limits how often it is asked (429).", wait_s=_named_wait(response, parsed if isinstance(parsed, dict) else {})
        )
    if not isinstance(parsed, dict):
        raise HomeserverDown(f"The homeserver answered with status {status} and a body that is no JSON object.", remedy=_LOOK)
    if 200 <= status < 300:  # noqa: PLR2004 - the class of success
        return parsed
    errcode = parsed.get("errcode")
    if errcode == "M_LIMIT_EXCEEDED":
        raise RateLimited("The homeserver limits how often it is asked (429).", wait_s=_named_wait(response, parsed))
    if status == 401 and "flows" in parsed:  # noqa: PLR2004 - the interactive step has no errcode on its first answer
        raise MatrixError("M_INTERACTIVE", "a further step is needed", status=status, body=parsed)
    if errcode == "M_USER_LOCKED":
        raise HomeserverDown("The account is locked by the homeserver's administrator.", wait_s=LAST_PAUSE_S)
    if not isinstance(errcode, str) or status >= 500:  # noqa: PLR2004 - server errors
        raise HomeserverDown(f"The homeserver answered with status {status} {errcode or 'and no Matrix error code'}.", remedy=_LOOK)
    raise MatrixError(errcode, str(parsed.get("error", ""))[:300], status=status, body=parsed)


def _named_wait(response: aiohttp.ClientResponse, parsed: dict[str, Any]) -> float | None:
    """Return the seconds that a 429 names: `Retry-After` (seconds or a date), else `retry_after_ms` of the body."""
    header = response.headers.get("Retry-After")
    if header is not None:
        try:
            return max(0.0, float(header))
        except ValueError:
            pass
        try:
            at = parsedate_to_datetime(header)
            base = parsedate_to_datetime(response.headers.get("Date", ""))
            return max(0.0, (at - base).total_seconds())
        except (ValueError, TypeError):
            pass
    after_ms = parsed.get("retry_after_ms")
    if isinstance(after_ms, int | float) and not isinstance(after_ms, bool):
        return max(0.0, after_ms / 1000)
    return None
