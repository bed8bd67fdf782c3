"""Deliveries to events: made once, kept, and put until the homeserver has them.

Promise: one delivery is one message in the room, never none and never two; nothing leaves in clear for an encrypted room.
How: rendered, cut and encrypted parts are rows with fixed transaction ids before the first try; a try after a crash puts the same bytes
under the same id. Where the server may have forgotten the id (12 h) or the device is a new one, the bot's own events in the room are
searched for the delivery id first.
Not here: order and settling (the harness asks for one delivery of a conversation at a time).
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING, Any

from nio.crypto.attachments import encrypt_attachment

from hayate_matrix.core.deliveries import Delivery, Sent
from hayate_matrix.core.ids import EventId, RoomId
from hayate_matrix.errors import DeliveryHeld, DeliveryRefused, DeliveryUncertain, HayateError, MatrixError, WaitError
from hayate_matrix.log import get_logger
from hayate_matrix.matrix.facts import DELIVERY_KEY
from hayate_matrix.matrix.http import room_path
from hayate_matrix.matrix.keystore.owed import Send
from hayate_matrix.matrix.machine import Unreadable
from hayate_matrix.matrix.render import ENCRYPTED_MAX_BYTES, PLAIN_MAX_BYTES, make_permalink, split_listing, split_reply
from hayate_matrix.matrix.render.content import make_content, make_reaction, make_relation

if TYPE_CHECKING:
    from hayate_matrix.matrix.http import Http
    from hayate_matrix.matrix.keys.sharing import RoomKeySharing
    from hayate_matrix.matrix.keystore import KeyStore
    from hayate_matrix.matrix.keystore.roomrows import Room
    from hayate_matrix.matrix.machine import Machine
    from hayate_matrix.matrix.rooms import Rooms

_log = get_logger(__name__)

TRUSTED_TXN_MS = 12 * 3600 * 1000
"""A homeserver may forget transaction ids (Synapse after 24 h); the specification of this project stops trusting them at half of that."""
_FILE_NAME = "reply.md"
_FORGOTTEN_MS = 7 * 24 * 3600 * 1000
_RENDERED_ASIDE = 8_000
"""Characters; a longer text is rendered in a thread: 200 kB of tiny list items take two seconds."""
_SEARCH_PAGES = 50
_SEARCH_PAGE = 100
_TYPING_MS = 30_000
_POLITE_S = 0.15
_HELD_PAUSE_S = 60.0
"""Between two tries of what a homeserver refuses for a reason that the room's state does not show."""


class Sender:
    """Brings deliveries to rooms; implements the harness's `Gateway`."""

    def __init__(
        self, keystore: KeyStore, http: Http, machine: Machine, rooms: Rooms, sharing: RoomKeySharing, *, is_encryption_on: bool
    ) -> None:
        self._keystore = keystore
        self._http = http
        self._machine = machine
        self._rooms = rooms
        self._sharing = sharing
        self._is_encryption_on = is_encryption_on
        self._locks: defaultdict[RoomId, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._confirmed_plain: set[RoomId] = set()
        self._allowed: dict[RoomId, bool] = {}
        self._held: set[RoomId] = set()
        """Rooms where something waits until they look open."""
        self._quiet_until: dict[RoomId, float] = {}
        """When a room may be told open again at the earliest, monotonic seconds."""
        self._settled: list[str] = []
        self._settled_before: list[str] = []

    # -- Gateway -------------------------------------------------------------------------------------------------------------

    async def deliver(self, delivery: Delivery) -> Sent:
        """Bring the delivery to its room, once; see `Gateway.deliver`."""
        async with self._locks[delivery.room_id]:
            try:
                sent = await self._deliver(delivery)
            except DeliveryHeld:
                self._held.add(delivery.room_id)
                raise
            self._quiet_until.pop(delivery.room_id, None)
            return sent

    async def _deliver(self, delivery: Delivery) -> Sent:
        problem, room, sends, restored_at_ms = await self._keystore.read(partial(self._look, delivery))
        if problem:
            raise DeliveryHeld(f"Nothing is sent to {delivery.room_id}: {problem}.")
        found = await self._search(delivery) if self._must_search(delivery, sends, restored_at_ms) else {}
        if found and not sends:
            return Sent(event_ids=tuple(found[part] for part in sorted(found)))
        sends = [await self._protect(delivery, send) for send in sends] or await self._prepare(delivery, room)
        event_ids = [found.get(send.part) or await self._put(send) for send in sends]
        self._settled.append(delivery.id)
        return Sent(event_ids=tuple(event_ids))

    async def take_reopened(self) -> list[RoomId]:
        """Return the rooms where something waited and that look open now, each at most once in `_HELD_PAUSE_S`."""
        now = self._keystore.clock.monotonic()
        due = [room_id for room_id in tuple(self._held) if self._quiet_until.get(room_id, now) <= now]
        found = await self._keystore.read(lambda: [room_id for room_id in due if self._is_open(room_id)]) if due else []
        self._held.difference_update(found)
        self._quiet_until.update(dict.fromkeys(found, now + _HELD_PAUSE_S))
        return found

    def note_denied(self, room_id: RoomId) -> bool:
        """Tell whether the room is served, and where it is not, let `take_reopened` look after it (edge's thread)."""
        is_served = bool(self._rooms.decide(self._rooms.find(room_id)))
        if not is_served:
            self._held.add(room_id)
        return is_served

    def _is_open(self, room_id: RoomId) -> bool:
        room = self._rooms.find(room_id)
        return not self._find_problem(room_id) and self._rooms.may_send(room, "m.room.encrypted" if room.is_encrypted else "m.room.message")

    async def show_typing(self, room_id: RoomId, *, is_typing: bool) -> None:
        """Tell the room that an answer is being made, or no longer."""
        path = room_path(room_id, "typing", self._machine.user_id)
        body = {"typing": True, "timeout": _TYPING_MS} if is_typing else {"typing": False}
        await self._try_politely(room_id, "typing", "PUT", path, body)

    async def mark_read(self, room_id: RoomId, event_id: EventId) -> None:
        """Send a read receipt, a moment later: an answer that is there at once goes first."""
        await self._keystore.clock.sleep(_POLITE_S)
        path = room_path(room_id, "receipt", "m.read", event_id)
        await self._try_politely(room_id, "receipt", "POST", path, {})

    async def _try_politely(self, room_id: RoomId, label: str, method: str, path: str, body: dict[str, Any]) -> None:
        try:
            if room_id not in self._allowed:
                self._allowed[room_id] = not await self._keystore.read(partial(self._find_problem, room_id))
            if self._allowed[room_id]:
                await self._http.request(label, method, path, body=body, timeout_s=10.0, retry=False, is_answer=False)
        except HayateError as error:
            _log.debug("left out", request=label, error=str(error))

    def forget_decisions(self) -> None:
        """Ask again whether rooms are served: a sync may have changed it."""
        self._allowed.clear()

    def drop_settled(self) -> None:
        """Forget the events of deliveries that the harness has settled since (edge's thread, in a transaction).

        A delivery handed back since the last call may not be settled yet: it stays until the next call. What a crash left goes after a
        week, when a new try would search the room first in any case.
        """
        for delivery_id in self._settled_before:
            self._keystore.owed.drop_sent(delivery_id)
        self._keystore.owed.drop_older(self._keystore.now_ms() - _FORGOTTEN_MS)
        self._settled_before, self._settled = self._settled, []

    # -- before the first try ------------------------------------------------------------------------------------------------

    def _look(self, delivery: Delivery) -> tuple[str, Room, list[Send], int]:
        """Return why nothing may be sent (or nothing), the room, what an earlier try kept, and when a backup was restored (0: never)."""
        return (
            self._find_problem(delivery.room_id),
            self._rooms.find(delivery.room_id),
            self._keystore.owed.list_sends(delivery.id),
            int(self._keystore.read_meta("restored_at_ms") or 0),
        )

    def _find_problem(self, room_id: RoomId) -> str:
        room = self._rooms.find(room_id)
        decision = self._rooms.decide(room)
        if not decision:
            return decision.text
        if room.membership != "join":
            return "the bot is not in the room"
        if room.is_encrypted and not self._is_encryption_on:
            return 'the room is encrypted and matrix.encryption is "off"'
        return ""

    async def _prepare(self, delivery: Delivery, room: Room) -> list[Send]:
        await self._learn_encryption(room)
        is_reaction = delivery.kind == "reaction"
        event_type = "m.reaction" if is_reaction else "m.room.message"
        contents = [make_reaction(delivery)] if is_reaction else await self._make_contents(delivery, is_encrypted=bool(room.is_encrypted))
        # Reactions travel in clear in encrypted rooms too: the specification has no encrypted form that clients read.
        if room.is_encrypted and not is_reaction:
            payloads = [{"type": event_type, "content": content} for content in contents]
            keep = partial(self._keep, delivery, "m.room.encrypted", is_encrypted=True)
            return await self._sharing.encrypt(delivery.room_id, payloads, keep)
        return await self._keystore.transaction("send.keep_plain", partial(self._keep_plain, delivery, event_type, contents))

    async def _make_contents(self, delivery: Delivery, *, is_encrypted: bool) -> list[dict[str, Any]]:
        """Return the contents of all messages: as many as the size asks for, and a file where five are not enough (OUT-4)."""
        max_bytes = ENCRYPTED_MAX_BYTES if is_encrypted else PLAIN_MAX_BYTES
        split = partial(split_reply, delivery.text, max_bytes=max_bytes)
        if delivery.kind == "listing":
            servers = await self._keystore.read(lambda: self._rooms.list_servers(delivery.room_id)) if delivery.links else []
            links = [(label, make_permalink(delivery.room_id, found, servers) if found else "") for label, found in delivery.links]
            split = partial(split_listing, delivery.text, links, max_bytes=max_bytes)
        parts = await asyncio.to_thread(split) if len(delivery.text) > _RENDERED_ASIDE else split()
        contents = [make_content(delivery, rendered, part) for part, rendered in enumerate(parts)]
        if parts[-1].overflow is not None:
            contents.append(await self._make_file(delivery, len(parts), is_encrypted=is_encrypted))
        return contents

    async def _make_file(self, delivery: Delivery, part: int, *, is_encrypted: bool) -> dict[str, Any]:
        """Upload the whole text and return the message that carries it; an upload that a crash leaves behind is in no room."""
        whole = delivery.text.encode()
        keys: dict[str, Any] = {}
        data = whole
        if is_encrypted:
            data, keys = await asyncio.to_thread(encrypt_attachment, whole)
        answer = await self._http.request("upload", "POST", "/_matrix/media/v3/upload", body=data, timeout_s=120.0)
        url = answer.get("content_uri")
        if not isinstance(url, str):
            raise DeliveryRefused("The homeserver gave no address for an uploaded file.")
        place = {"file": {**keys, "url": url}} if is_encrypted else {"url": url}
        return {
            "msgtype": "m.file",
            "body": _FILE_NAME,
            "filename": _FILE_NAME,
            "info": {"mimetype": "text/markdown", "size": len(whole)},
            **place,
            **make_relation(delivery, part),
            "m.mentions": {},
            DELIVERY_KEY: f"{delivery.id}/{part}",
        }

    def _keep(self, delivery: Delivery, event_type: str, contents: list[dict[str, Any]], *, is_encrypted: bool) -> list[Send]:
        sends = [
            Send(
                delivery_id=delivery.id,
                part=part,
                txn_id=f"{delivery.id}-{part}",
                room_id=delivery.room_id,
                event_type=event_type,
                content=content,
                is_encrypted=is_encrypted,
                device_id=self._machine.device_id,
                made_at_ms=self._keystore.now_ms(),
            )
            for part, content in enumerate(contents)
        ]
        for send in sends:
            self._keystore.owed.add_send(send)
        return sends

    def _keep_plain(self, delivery: Delivery, event_type: str, contents: list[dict[str, Any]]) -> list[Send]:
        """Keep clear events; the flag is read in the same transaction, so that none is kept for a room that just became encrypted."""
        if self._rooms.find(delivery.room_id).is_encrypted and event_type != "m.reaction":
            raise WaitError(f"{delivery.room_id} became encrypted while an answer was made; it is made again.")
        return self._keep(delivery, event_type, contents, is_encrypted=False)

    async def _learn_encryption(self, room: Room) -> None:
        """Make sure that it is known whether the room is encrypted; asked once a process for rooms that are not (E2E-5)."""
        if room.is_encrypted or room.room_id in self._confirmed_plain:
            return
        path = room_path(room.room_id, "state", "m.room.encryption", "")
        try:
            content = await self._http.request("encryption_state", "GET", path)
        except MatrixError as error:
            if error.errcode == "M_NOT_FOUND":
                self._confirmed_plain.add(room.room_id)
                await self._keystore.transaction("room.plain", lambda: self._note_encryption(room.room_id, None))
                return
            raise DeliveryHeld(
                f"It is not known whether {room.room_id} is encrypted ({error.errcode}), so nothing is sent there."
            ) from error
        if not isinstance(content.get("algorithm"), str):
            raise DeliveryHeld(f"It is not known whether {room.room_id} is encrypted, so nothing is sent there.")
        await self._keystore.transaction("room.encrypted", lambda: self._note_encryption(room.room_id, content))
        room.is_encrypted = True
        if not self._is_encryption_on:
            raise DeliveryHeld(f'{room.room_id} is encrypted and matrix.encryption is "off".')

    def _note_encryption(self, room_id: RoomId, content: dict[str, Any] | None) -> None:
        room = self._rooms.find(room_id)
        if content is not None:
            self._rooms.apply_state(room, {"type": "m.room.encryption", "state_key": "", "content": content})
        elif room.is_encrypted is None:
            room.is_encrypted = False
        self._rooms.save(room)

    async def _protect(self, delivery: Delivery, send: Send) -> Send:
        """Return the send as it may leave: a clear one that was kept before the room became encrypted is made again, encrypted."""
        if send.is_encrypted or send.event_type == "m.reaction":
            return send
        is_encrypted = await self._keystore.read(lambda: self._rooms.find(send.room_id).is_encrypted)
        if not is_encrypted:
            return send
        found = await self._search(delivery)
        if send.part in found:
            return send
        payload = {"type": send.event_type, "content": send.content}
        return await self._sharing.encrypt(send.room_id, [payload], partial(self._replace, send))

    def _replace(self, send: Send, ciphertexts: list[dict[str, Any]]) -> Send:
        fresh = dataclasses.replace(
            send,
            txn_id=f"{send.txn_id}-e",
            event_type="m.room.encrypted",
            content=ciphertexts[0],
            is_encrypted=True,
            device_id=self._machine.device_id,
            made_at_ms=self._keystore.now_ms(),
        )
        self._keystore.owed.add_send(fresh)
        return fresh

    # -- tries ---------------------------------------------------------------------------------------------------------------

    async def _put(self, send: Send) -> EventId:
        path = room_path(send.room_id, "send", send.event_type, send.txn_id)
        try:
            answer = await self._http.request("send", "PUT", path, body=send.content, timeout_s=60.0)
        except MatrixError as error:
            if error.errcode == "M_DUPLICATE_ANNOTATION":
                return EventId("")
            if error.errcode in ("M_FORBIDDEN", "M_UNKNOWN_TOKEN", "M_MISSING_TOKEN", "M_GUEST_ACCESS_FORBIDDEN"):
                raise DeliveryHeld(f"The homeserver refuses messages to {send.room_id}: {error.errcode}.") from error
            raise DeliveryRefused(f"The homeserver refused a message to {send.room_id} for ever: {error}") from error
        event_id = answer.get("event_id")
        return EventId(event_id if isinstance(event_id, str) else "")

    def _must_search(self, delivery: Delivery, sends: list[Send], restored_at_ms: int) -> bool:
        made_at_ms = delivery.created_at_ms or self._keystore.now_ms()
        oldest_ms = min([send.made_at_ms for send in sends], default=made_at_ms)
        is_old = self._keystore.now_ms() - oldest_ms > TRUSTED_TXN_MS
        # What a backup still owes may have been sent after the backup was made, by the device that it was made of.
        is_restored = not sends and made_at_ms < restored_at_ms
        return is_old or is_restored or any(send.device_id != self._machine.device_id for send in sends)

    async def _search(self, delivery: Delivery) -> dict[int, EventId]:
        """Return part → event id of what the room already has of the delivery.

        Raises:
            DeliveryUncertain: the room's history could not be searched through back to before the delivery.
        """
        found: dict[int, EventId] = {}
        unread = 0
        earliest_ms = delivery.created_at_ms - 3600 * 1000
        path = room_path(delivery.room_id, "messages")
        start: str | None = None
        for _ in range(_SEARCH_PAGES):
            query = {"dir": "b", "limit": str(_SEARCH_PAGE)}
            if start is not None:
                query["from"] = start
            try:
                page = await self._http.request("search", "GET", path, query=query)
            except MatrixError as error:
                raise DeliveryUncertain(f"{delivery.room_id} can't be searched for an earlier try: {error}") from error
            events = [event for event in page.get("chunk", []) if isinstance(event, dict)]
            own = [event for event in events if event.get("sender") == self._machine.user_id]
            for event in own:
                mark = await self._keystore.transaction("send.search", partial(self._read_mark, event, delivery.room_id))
                if mark is None:
                    unread += 1
                elif mark.startswith(f"{delivery.id}/") and mark.rpartition("/")[2].isdigit():
                    found[int(mark.rpartition("/")[2])] = EventId(event["event_id"])
            start = page.get("end") if isinstance(page.get("end"), str) else None
            ages = [event["origin_server_ts"] for event in events if isinstance(event.get("origin_server_ts"), int)]
            if start is None or (ages and max(ages) < earliest_ms):
                if unread and not found:
                    text = f"{delivery.room_id} has {unread} messages of the bot that it can't read; an earlier try may be among them."
                    raise DeliveryUncertain(text)
                return found
        raise DeliveryUncertain(f"{delivery.room_id} has too many messages since the delivery was made to search for an earlier try.")

    def _read_mark(self, event: dict[str, Any], room_id: RoomId) -> str | None:
        """Return the delivery that one of the bot's own events names, nothing where it names none, None where it can't be read."""
        try:
            content = event["content"]
            if event["type"] == "m.room.encrypted" and content:
                content = self._machine.open_room_event(event, room_id, is_own=True)["content"]
            mark = content.get(DELIVERY_KEY)
        except Unreadable:
            return None
        except (KeyError, TypeError, AttributeError):
            return ""
        return mark if isinstance(mark, str) else ""
