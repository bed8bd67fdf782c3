"""Invites taken or rejected, joins retried, denied rooms left where the operator wants it, aliases pinned (ROOM-1 to ROOM-6)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import quote

from hayate_matrix.core.ids import RoomId
from hayate_matrix.errors import MatrixError, WaitError
from hayate_matrix.log import get_logger
from hayate_matrix.matrix.http import room_path

if TYPE_CHECKING:
    from hayate_matrix.matrix.http import Http
    from hayate_matrix.matrix.keystore import KeyStore
    from hayate_matrix.matrix.rooms import Rooms

_log = get_logger(__name__)

_JOIN_PAUSES_MS = (5_000, 30_000, 120_000, 600_000, 3_600_000)
"""Pauses before a join that failed is tried again; the last is kept up for as long as the invite stands."""


class Memberships:
    """Acts on what the projection says about the bot's own membership."""

    def __init__(self, keystore: KeyStore, http: Http, rooms: Rooms, *, leave_denied: bool) -> None:
        self._keystore = keystore
        self._http = http
        self._rooms = rooms
        self._leave_denied = leave_denied
        self._unresolved: set[str] = set()
        """Aliases of which the log of this run says that they can't be resolved."""

    async def tend(self) -> None:
        """Decide every invite that stands, those of an earlier run too, and leave denied rooms if that is wanted."""
        for room_id in await self._keystore.read(lambda: self._keystore.rooms.list_ids("invite")):
            await self._decide_invite(room_id)
        if self._leave_denied:
            for room_id in await self._keystore.read(lambda: self._keystore.rooms.list_ids("join")):
                if not await self._keystore.read(partial(self._is_served, room_id)):
                    _log.info("leaving a denied room", room=room_id)
                    await self._leave(room_id)

    async def resolve_aliases(self) -> None:
        """Ask the directory where the aliases of the allowlist point; the first answer is pinned."""
        for entry in self._rooms.policy.rooms or ():
            if entry.kind != "alias":
                continue
            path = f"/_matrix/client/v3/directory/room/{quote(entry.value, safe='')}"
            try:
                answer = await self._http.request("alias", "GET", path, timeout_s=20.0, retry=False)
            except (MatrixError, WaitError) as error:
                if entry.value not in self._unresolved:
                    self._unresolved.add(entry.value)
                    is_pinned = entry.value not in await self._keystore.read(self._rooms.list_alias_troubles)
                    means = "the room that it named before is served" if is_pinned else "no room is served for it yet"
                    _log.warning(
                        "an alias of matrix.rooms can't be resolved, and is tried again every minute",
                        alias=entry.value,
                        means=means,
                        error=str(error),
                    )
                continue
            room_id = answer.get("room_id")
            if isinstance(room_id, str) and room_id.startswith("!"):
                if entry.value in self._unresolved:
                    self._unresolved.remove(entry.value)
                    _log.info("an alias of matrix.rooms is resolved now", alias=entry.value, room=room_id)
                await self._keystore.transaction("room.alias", partial(self._rooms.note_alias, entry.value, RoomId(room_id)))

    async def _decide_invite(self, room_id: RoomId) -> None:
        room = await self._keystore.read(lambda: self._rooms.find(room_id))
        if room.membership != "invite":
            return
        decision = await self._keystore.read(lambda: self._rooms.decide_invite(room))
        if decision:
            if room.next_join_at_ms <= self._keystore.now_ms():
                await self._join(room_id)
        elif decision.reason != "alias-not-pinned":
            # An alias that is not resolved yet may name this very room: such an invite waits.
            _log.info("rejecting an invite", room=room_id, inviter=room.inviter, reason=decision.text)
            await self._leave(room_id)

    async def _join(self, room_id: RoomId) -> None:
        try:
            await self._http.request("join", "POST", room_path(room_id, "join"), timeout_s=120.0, retry=False)
        except (MatrixError, WaitError) as error:
            _log.warning("a join failed and is tried again", room=room_id, error=str(error))
            await self._keystore.transaction("room.join_failed", lambda: self._note_failure(room_id))
        else:
            _log.info("joined a room", room=room_id)
            # The membership becomes "join" with the sync that brings the room; until then the invite is not answered twice.
            await self._keystore.transaction("room.joined", lambda: self._note_asked(room_id))

    async def _leave(self, room_id: RoomId) -> None:
        try:
            await self._http.request("leave", "POST", room_path(room_id, "leave"), retry=False)
        except WaitError as error:
            _log.warning("a leave failed and is tried again", room=room_id, error=str(error))
            return
        except MatrixError as error:
            _log.warning("the homeserver refused a leave", room=room_id, error=str(error))
        await self._keystore.transaction("room.left", lambda: self._note_left(room_id))

    def _is_served(self, room_id: RoomId) -> bool:
        return bool(self._rooms.decide(self._rooms.find(room_id)))

    def _note_failure(self, room_id: RoomId) -> None:
        room = self._rooms.find(room_id)
        pause = _JOIN_PAUSES_MS[min(room.join_failures, len(_JOIN_PAUSES_MS) - 1)]
        room.join_failures += 1
        room.next_join_at_ms = self._keystore.now_ms() + pause
        self._rooms.save(room)

    def _note_asked(self, room_id: RoomId) -> None:
        room = self._rooms.find(room_id)
        if room.membership == "invite":
            room.next_join_at_ms = self._keystore.now_ms() + _JOIN_PAUSES_MS[2]
            self._rooms.save(room)

    def _note_left(self, room_id: RoomId) -> None:
        room = self._rooms.find(room_id)
        room.membership = "leave"
        self._rooms.save(room)
