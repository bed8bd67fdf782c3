"""Fills what a sync left out of a room's timeline, oldest first, before newer events of that room are handed over (IN-2)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from hayate_matrix.errors import MatrixError
from hayate_matrix.log import get_logger
from hayate_matrix.matrix.http import room_path
from hayate_matrix.matrix.sync.guard import is_event
from hayate_matrix.matrix.sync.timeline import Applied, Moment, Timeline

if TYPE_CHECKING:
    from collections.abc import Callable

    from hayate_matrix.matrix.http import Http
    from hayate_matrix.matrix.keystore import KeyStore
    from hayate_matrix.matrix.keystore.spool import Gap
    from hayate_matrix.matrix.rooms import Rooms

_log = get_logger(__name__)

_PAGE = 100
DEADLINE_MS = 10 * 60 * 1000
"""After ten minutes newer events go on before a gap that can't be filled; what fills it later comes late."""
_COUNTED_PAGES = 100
"""Beyond the limit events are only counted, for the line that says how many were skipped; after this many pages not even that."""


class GapFiller:
    """Fills the open gaps, one page at a time."""

    def __init__(
        self, keystore: KeyStore, http: Http, rooms: Rooms, timeline: Timeline, *, backfill_limit: int, find_moment: Callable[[], Moment]
    ) -> None:
        self._keystore = keystore
        self._http = http
        self._rooms = rooms
        self._timeline = timeline
        self._limit = backfill_limit
        self._find_moment = find_moment

    async def fill_all(self) -> Applied:
        """Fill every open gap; a gap that the homeserver can't fill is closed, one that it does not answer for stays."""
        applied = Applied()
        for gap in await self._keystore.read(self._keystore.spool.list_gaps):
            await self._fill(gap, applied)
        return applied

    async def free_overdue(self) -> int:
        """Let newer events go on before gaps that are open too long."""
        before_ms = self._keystore.now_ms() - DEADLINE_MS
        return await self._keystore.transaction("sync.gap.overdue", lambda: self._keystore.spool.mark_overdue(before_ms))

    async def _fill(self, gap: Gap, applied: Applied) -> None:
        path = room_path(gap.room_id, "messages")
        start: str | None = gap.prev_batch
        newest_first: list[dict[str, Any]] = []
        skipped = 0
        pages = 0
        is_bordered = False
        while start is not None and not is_bordered and pages < _COUNTED_PAGES + self._limit // _PAGE:
            pages += 1
            try:
                page = await self._http.request("messages", "GET", path, query={"dir": "b", "from": start, "limit": str(_PAGE)})
            except MatrixError as error:
                _log.warning("a gap can't be filled", room=gap.room_id, error=str(error))
                break
            chunk = page.get("chunk")
            events = [event for event in chunk if is_event(event)] if isinstance(chunk, list) else []
            known = await self._keystore.read(partial(self._find_border, gap, events))
            is_bordered = known is not None
            for event in events[:known]:
                if len(newest_first) < self._limit:
                    newest_first.append(event)
                elif event["type"] in ("m.room.encrypted", "m.room.message"):
                    skipped += 1
            end = page.get("end")
            # An empty page with an end is no end: servers page over events that they may not show.
            start = end if isinstance(end, str) and end != start else None
        await self._keystore.transaction("sync.gap", partial(self._settle, gap, newest_first, skipped, applied))

    def _find_border(self, gap: Gap, events: list[dict[str, Any]]) -> int | None:
        """Return the index of the first event that is known already, or is the bot's own join."""
        for index, event in enumerate(events):
            if event["event_id"] == gap.border or self._keystore.spool.is_known(gap.room_id, event["event_id"]):
                return index
        return None

    def _settle(self, gap: Gap, newest_first: list[dict[str, Any]], skipped: int, applied: Applied) -> None:
        room = self._rooms.find(gap.room_id)
        moment = self._find_moment()
        events = list(reversed(newest_first))
        if room.membership == "join":
            if skipped and self._rooms.decide(room):
                self._timeline.add_skipped_gap(gap.room_id, skipped, gap.major, moment)
            # State in the gap is older than what the sync's state section told: only messages are taken from here.
            messages = [event for event in events if "state_key" not in event]
            self._timeline.apply(room, messages, moment, applied, position=str(gap.major), provenance="gap", major=gap.major)
        self._keystore.spool.remember(gap.room_id, [event["event_id"] for event in events])
        self._keystore.spool.close_gap(gap.major)
