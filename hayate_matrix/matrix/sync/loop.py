"""Asks the homeserver what is new, for as long as the bot runs, and applies each answer before it asks again.

Promise: the position on disk never passes anything that is not on disk; what fails to apply is made smaller until the rest is through.
How: one request at a time; an answer is applied in one transaction; if that fails, memory is rebuilt from disk and the answer is applied
again part by part, a part that fails alone is set aside.
Not here: what follows from an answer (`client` wakes the workers).
"""

from __future__ import annotations

import dataclasses
import json
from functools import partial
from typing import TYPE_CHECKING, Any

from hayate_matrix.errors import MatrixError
from hayate_matrix.log import get_logger
from hayate_matrix.matrix.http import FIRST_PAUSE_S, LAST_PAUSE_S
from hayate_matrix.matrix.sync.apply import note_counts
from hayate_matrix.matrix.sync.guard import SyncAnswer, normalise
from hayate_matrix.matrix.sync.timeline import Applied, Moment

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from datetime import datetime

    from hayate_matrix.core.clock import Clock
    from hayate_matrix.matrix.http import Http
    from hayate_matrix.matrix.keystore import KeyStore
    from hayate_matrix.matrix.sync.apply import Applier, Mode

_log = get_logger(__name__)

LONG_POLL_S = 30
TIMELINE_EVENTS = 50
"""Events of a room that one answer shows; more is a gap and is filled page by page."""
_FIRST_TIMELINE_EVENTS = 1
"""At the first sync the past is history: one event a room tells where it ends."""
_KEPT_EVERY_S = 60.0
"""The position is written at least this often, also where nothing else is: it tells the next start how long an outage was."""
_REFUSED_POSITION = frozenset({"M_UNKNOWN_POS", "M_UNKNOWN", "M_INVALID_PARAM", "M_BAD_JSON"})


def make_filter(timeline_events: int) -> str:
    """Return the filter of a sync: whole state of new rooms, no presence, no typing, no receipts."""
    nothing: dict[str, Any] = {"types": [], "limit": 0}
    return json.dumps(
        {
            "presence": nothing,
            "account_data": {"types": ["m.direct"]},
            "room": {
                "timeline": {"limit": timeline_events, "lazy_load_members": False},
                "state": {"lazy_load_members": False},
                "ephemeral": nothing,
                "account_data": nothing,
                "include_leave": False,
            },
        },
        separators=(",", ":"),
    )


class SyncLoop:
    """The receive loop."""

    def __init__(
        self,
        keystore: KeyStore,
        http: Http,
        applier: Applier,
        clock: Clock,
        *,
        backlog_age_ms: int,
        own_user_id: str,
        on_applied: Callable[[Applied], Awaitable[None]],
        may_take: Callable[[], bool],
    ) -> None:
        self._keystore = keystore
        self._http = http
        self._applier = applier
        self._clock = clock
        self._backlog_age_ms = backlog_age_ms
        self._own_user_id = own_user_id
        self._on_applied = on_applied
        self._may_take = may_take
        self._is_rebasing = False
        self._outage_ms = 0
        self._kept_at = 0.0
        self.position: str | None = None
        """Where the next sync goes on; what it has passed beyond the one on disk is nothing that must be kept."""
        self.last_progress_at: float | None = None
        """Monotonic seconds of the last answer that was applied, or of the start of the loop; the watchdog's measure."""
        self.last_applied_at: datetime | None = None
        """When the last answer was applied; for the operator."""
        self._is_settled = False

    async def run(self) -> None:
        """Sync until cancelled."""
        pause_s = FIRST_PAUSE_S
        self.last_progress_at = self._clock.monotonic()
        while True:
            if not self._may_take():
                _log.error("the disk is nearly full: nothing is taken from the homeserver that can't be kept")
                await self._clock.sleep(LONG_POLL_S)
                self.last_progress_at = self._clock.monotonic()
                continue
            try:
                if self.position is None:
                    self.position = await self._keystore.read(lambda: self._keystore.read_meta("position"))
                await self._take(await self._ask(self.position))
            except MatrixError as error:
                if error.errcode in _REFUSED_POSITION and self.position is not None and not self._is_rebasing:
                    _log.error("the sync position is refused; known rooms go on where they were", error=str(error))
                    self._is_rebasing = True
                    continue
                _log.error("the homeserver refused the sync", error=str(error), next_try_s=pause_s)
                await self._clock.sleep(pause_s)
                pause_s = min(pause_s * 2, LAST_PAUSE_S)
            except ValueError as error:
                _log.error("a sync answer has no usable shape", error=str(error), next_try_s=pause_s)
                await self._clock.sleep(pause_s)
                pause_s = min(pause_s * 2, LAST_PAUSE_S)
            else:
                pause_s = FIRST_PAUSE_S

    def find_moment(self) -> Moment:
        """Return the present by the homeserver's clock, with the length of the outage that is being caught up with."""
        return Moment(server_now_ms=self._http.server_now_ms(), outage_ms=self._outage_ms, backlog_age_ms=self._backlog_age_ms)

    def rebase(self) -> None:
        """Let the next sync begin without a position: the homeserver was rolled back (IN-10)."""
        self._is_rebasing = True

    async def _ask(self, position: str | None) -> dict[str, Any]:
        is_first = position is None or self._is_rebasing
        events = _FIRST_TIMELINE_EVENTS if position is None else TIMELINE_EVENTS
        # The first answer of a process comes at once: an empty one settles what an outage was.
        timeout_ms = 0 if is_first or not self._is_settled else LONG_POLL_S * 1000
        query = {"filter": make_filter(events), "timeout": str(timeout_ms), "set_presence": "offline"}
        if not is_first and position is not None:
            query["since"] = position
        # An account of a thousand rooms takes a server minutes to answer the first time.
        timeout_s = 600.0 if is_first else LONG_POLL_S * 2.0
        return await self._http.request(
            "sync", "GET", "/_matrix/client/v3/sync", query=query, timeout_s=timeout_s, failing_query={"timeout": "0"}
        )

    async def _take(self, raw: dict[str, Any]) -> None:
        answer = normalise(raw)
        mode: Mode = "first" if self.position is None else "rebase" if self._is_rebasing else "usual"
        if not self._is_settled:
            self._outage_ms = await self._measure_outage()
        moment = self.find_moment()
        now = self._clock.monotonic()
        if mode == "usual" and self._is_settled and now - self._kept_at < _KEPT_EVERY_S and answer.is_nothing_new(self._own_user_id):
            # Worth no commit: a crash asks for it again and passes it over again.
            applied = Applied()
            note_counts(answer, applied)
        else:
            applied = await self._apply(answer, mode, moment)
            self._kept_at = now
        self.position = answer.next_batch
        self._is_rebasing = False
        self._is_settled = True
        self.last_progress_at = self._clock.monotonic()
        self.last_applied_at = self._clock.now()
        if not answer.joined:
            self._outage_ms = 0
        await self._on_applied(applied)

    async def _apply(self, answer: SyncAnswer, mode: Mode, moment: Moment) -> Applied:
        try:
            return await self._keystore.transaction("sync.apply", lambda: self._applier.apply(answer, mode, moment))
        except Exception as error:  # noqa: BLE001 - whatever it is, the answer must get through or be set aside
            _log.error("a sync answer could not be applied at once; it is applied part by part", error=f"{type(error).__name__}: {error}")
            return await self._apply_in_parts(answer, mode, moment)

    async def _measure_outage(self) -> int:
        last = await self._keystore.read(lambda: self._keystore.read_meta("synced_at_server_ms"))
        return max(0, self._http.server_now_ms() - int(last)) if last is not None else 0

    async def _apply_in_parts(self, answer: SyncAnswer, mode: Mode, moment: Moment) -> Applied:
        """Apply the answer in small transactions; what fails alone is set aside, the position comes last."""
        applied = Applied()
        head = dataclasses.replace(answer, to_device=[], joined=[], left_rooms=[], invited=[])
        parts: list[tuple[str, object, Callable[[], None]]] = [
            ("to_device", event, partial(self._applier.apply_head, SyncAnswer(answer.next_batch, to_device=[event]), applied))
            for event in answer.to_device
        ]
        parts.append(("head", answer.account_data, partial(self._applier.apply_head, head, applied)))
        parts += [
            (part.room_id, part.timeline, partial(self._applier.apply_joined, part, mode, moment, answer.next_batch, applied))
            for part in answer.joined
        ]
        parts += [(part.room_id, part.timeline, partial(self._applier.apply_left, part, mode, applied)) for part in answer.left_rooms]
        parts += [(room_id, state, partial(self._applier.apply_invite, room_id, state, applied)) for room_id, state in answer.invited]
        for where, raw, work in parts:
            try:
                await self._keystore.transaction("sync.apply_part", work)
            except Exception as error:  # noqa: BLE001 - as above
                room_id = where if where.startswith("!") else ""
                note = partial(self._keystore.spool.set_aside, "part", f"{type(error).__name__}: {error}", raw, room_id=room_id)
                await self._keystore.transaction("sync.set_aside", note)
        await self._keystore.transaction("sync.position", lambda: self._applier.finish(answer, moment))
        return applied
