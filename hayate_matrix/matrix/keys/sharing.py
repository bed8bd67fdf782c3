"""Who gets a room key, and the encryption of a message once they have it.

Promise: a message is encrypted only with a key that every device which may read it holds or is being sent, and that nobody else holds;
the key is never used twice for one index, whatever is cut off when.
How: who may read is computed from rows in the same transaction that moves the ratchet; a difference means another round of device lists,
claims and shares, never an old list. The running key, with whom it was shared and what is owed to devices are rows.
Not here: room keys for the bot, which the application of a sync response takes in.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

from nio.crypto import InboundGroupSession, OutboundGroupSession

from hayate_matrix.errors import MatrixError, WaitError
from hayate_matrix.log import get_logger
from hayate_matrix.matrix.keystore.owed import RoomKeyOut
from hayate_matrix.matrix.machine import MEGOLM, Machine, Unreadable

if TYPE_CHECKING:
    from collections.abc import Callable

    from hayate_matrix.core.ids import RoomId, UserId
    from hayate_matrix.matrix.http import Http
    from hayate_matrix.matrix.keys.devices import DeviceLists
    from hayate_matrix.matrix.keystore import KeyStore
    from hayate_matrix.matrix.keystore.roomrows import Room
    from hayate_matrix.matrix.keystore.trust import Device
    from hayate_matrix.matrix.rooms import Rooms

_log = get_logger(__name__)
T = TypeVar("T")

MESSAGES_A_REQUEST = 100
"""To-device messages in one request (E2E-11): one message is about 1.2 kB, so a request stays near 120 kB."""
_SHARE_STEP = 250
"""Devices handled in one transaction, so that the edge's thread stays free for others in between."""
_ROUNDS = 6
"""Rounds of sharing before a message; each ends early unless somebody came, left or changed a device meanwhile."""
_CLAIM_PAUSES_MS = (60_000, 600_000, 3_600_000, 86_400_000)
"""Pauses before a device that had no one-time key, or one with a bad signature, is asked again."""
_QUERY_TIMEOUT_S = 10.0
"""A message waits this long for device lists of other servers; who is late gets the key with a later message."""


@dataclass(slots=True)
class Audience:
    """Who may read in a room now."""

    trusted: dict[tuple[str, str], Device] = field(default_factory=dict)
    refused: dict[tuple[str, str], Device] = field(default_factory=dict)
    """Devices that their owners have not signed, or whose owner's identity changed."""
    unknown_users: set[UserId] = field(default_factory=set)
    """Users whose device lists are out of date and can be asked for now."""


@dataclass(slots=True)
class _Round:
    missing: list[Device] = field(default_factory=list)
    """Devices that need an Olm session first."""
    shared: int = 0
    is_more: bool = False


class RoomKeySharing:
    """Shares room keys and encrypts with them."""

    def __init__(self, keystore: KeyStore, http: Http, machine: Machine, rooms: Rooms, devices: DeviceLists) -> None:
        self._keystore = keystore
        self._http = http
        self._machine = machine
        self._rooms = rooms
        self._devices = devices
        self._flush_lock = asyncio.Lock()
        self._indebted: set[RoomId] = set()

    # -- encrypting ----------------------------------------------------------------------------------------------------------

    async def encrypt(self, room_id: RoomId, payloads: list[dict[str, Any]], keep: Callable[[list[dict[str, Any]]], T]) -> T:
        """Encrypt events for the room, hand the ciphertexts to `keep` in the transaction that moves the ratchet, and return what it gives.

        Args:
            room_id: an encrypted room that the bot is in.
            payloads: events as `{"type": …, "content": …}`.
            keep: writes the ciphertexts (edge's thread); after the commit they may leave.
        """
        kept: list[T] = []

        def keep_once(ciphertexts: list[dict[str, Any]]) -> None:
            kept.append(keep(ciphertexts))

        for turn in range(_ROUNDS):
            is_last = turn == _ROUNDS - 1
            if await self._keystore.transaction("send.keep", partial(self._try_encrypt, room_id, payloads, keep_once, force=is_last)):
                break
            await self.share(room_id)
        return kept[-1]

    def _try_encrypt(
        self, room_id: RoomId, payloads: list[dict[str, Any]], keep: Callable[[list[dict[str, Any]]], None], *, force: bool
    ) -> bool:
        room = self._rooms.find(room_id)
        key = self._keystore.owed.read_room_key_out(room_id)
        audience = self._find_audience(room)
        if key is None or self._must_change(room, key, audience, len(payloads)):
            if not force:
                return False
            key = self._make_key(room)
        elif not force and (audience.unknown_users or self._find_owed(key, audience) or self._keystore.owed.last_to_device()):
            return False
        if force:
            self._indebted.add(room_id)
        ciphertexts = [self._encrypt_one(room, key, payload) for payload in payloads]
        self._keystore.owed.save_room_key_out(key)
        keep(ciphertexts)
        return True

    def _encrypt_one(self, room: Room, key: RoomKeyOut, payload: dict[str, Any]) -> dict[str, Any]:
        plaintext = json.dumps({**payload, "room_id": room.room_id}, ensure_ascii=False, separators=(",", ":"))
        # nio's wrapper counts messages and age in memory; the rows count them here.
        session = key.session
        session.shared, session.message_count = True, 0
        ciphertext = session.encrypt(plaintext)
        key.messages += 1
        content = {
            "algorithm": MEGOLM,
            "sender_key": self._machine.curve25519,
            "device_id": self._machine.device_id,
            "session_id": session.id,
            "ciphertext": ciphertext,
        }
        relation = payload["content"].get("m.relates_to")
        return {**content, "m.relates_to": relation} if relation else content

    # -- sharing -------------------------------------------------------------------------------------------------------------

    async def share(self, room_id: RoomId) -> None:
        """Bring the room key to every device that may read, as far as they can be reached now."""
        members = await self._keystore.read(lambda: self._rooms.list_recipients(self._rooms.find(room_id)))
        await self._keystore.transaction("keys.track", lambda: self._keystore.trust.track(members))
        await self._devices.refresh(members, timeout_s=_QUERY_TIMEOUT_S, only_due=True)
        claimed: set[tuple[str, str]] = set()
        while True:
            step = await self._keystore.transaction("keys.share", lambda: self._share_some(room_id))
            wanted = [device for device in step.missing if (device.user_id, device.device_id) not in claimed]
            if wanted:
                claimed.update((device.user_id, device.device_id) for device in wanted)
                await self._claim(wanted)
            elif not step.is_more:
                break
        if step.missing:
            self._indebted.add(room_id)
        else:
            self._indebted.discard(room_id)
        await self.flush()

    async def settle_debts(self) -> None:
        """Try again to share the running keys that some device did not get; called now and then."""
        for room_id in list(self._indebted):
            await self.share(room_id)

    def _share_some(self, room_id: RoomId) -> _Round:
        room = self._rooms.find(room_id)
        audience = self._find_audience(room)
        owed, trust = self._keystore.owed, self._keystore.trust
        key = owed.read_room_key_out(room_id)
        if key is None or self._must_change(room, key, audience, 1):
            key = self._make_key(room)
            owed.save_room_key_out(key)
        now_ms = self._keystore.now_ms()
        todo = self._find_owed(key, audience)
        outcome = _Round(is_more=len(todo) > _SHARE_STEP)
        content = {"algorithm": MEGOLM, "room_id": room_id, "session_id": key.session.id, "session_key": key.session.session_key}
        shared: list[Device] = []
        messages: dict[str, dict[str, Any]] = {}
        for device in todo:
            if len(shared) >= _SHARE_STEP:
                break
            encrypted = self._machine.encrypt_olm(device, "m.room_key", content)
            if encrypted is None:
                if device.next_claim_at_ms <= now_ms:
                    outcome.missing.append(device)
                continue
            shared.append(device)
            messages.setdefault(device.user_id, {})[device.device_id] = encrypted
            if len(shared) % MESSAGES_A_REQUEST == 0:
                owed.add_to_device("m.room.encrypted", messages)
                messages = {}
        if messages:
            owed.add_to_device("m.room.encrypted", messages)
        trust.add_shares(key.session.id, shared, "sent")
        outcome.shared = len(shared)
        # Devices that wait for a claim or have none to give are not shared with in this step: nothing more is to be done for them now.
        outcome.is_more = outcome.is_more and bool(shared)
        self._tell_refused(room_id, key, audience)
        return outcome

    def _tell_refused(self, room_id: RoomId, key: RoomKeyOut, audience: Audience) -> None:
        """Tell devices that are left out why, once a room key (`m.room_key.withheld`)."""
        shares = self._keystore.trust.read_shares(key.session.id)
        fresh = [device for name, device in audience.refused.items() if name not in shares]
        for start in range(0, len(fresh), MESSAGES_A_REQUEST):
            messages: dict[str, dict[str, Any]] = {}
            for device in fresh[start : start + MESSAGES_A_REQUEST]:
                messages.setdefault(device.user_id, {})[device.device_id] = {
                    "algorithm": MEGOLM,
                    "code": "m.blacklisted" if device.is_blacklisted else "m.unverified",
                    "reason": "This device is not verified by its owner.",
                    "room_id": room_id,
                    "sender_key": self._machine.curve25519,
                    "session_id": key.session.id,
                }
            self._keystore.owed.add_to_device("m.room_key.withheld", messages)
        self._keystore.trust.add_shares(key.session.id, fresh, "withheld")

    def _find_audience(self, room: Room) -> Audience:
        audience = Audience()
        own = (self._machine.user_id, self._machine.device_id)
        memberships = self._rooms.find_readers(room)
        for user_id, must_ask, is_changed, device in self._keystore.trust.list_audience(room.room_id, memberships, self._keystore.now_ms()):
            if must_ask:
                audience.unknown_users.add(user_id)
            if device is None or (user_id, device.device_id) == own:
                continue
            is_fine = self._machine.is_trusted(device) and not is_changed
            (audience.trusted if is_fine else audience.refused)[device.user_id, device.device_id] = device
        return audience

    def _find_owed(self, key: RoomKeyOut, audience: Audience) -> list[Device]:
        """Return trusted devices that were not sent the key and can be asked for a one-time key now, or have a session."""
        shares = self._keystore.trust.read_shares(key.session.id)
        now_ms = self._keystore.now_ms()
        return [
            device
            for name, device in audience.trusted.items()
            if shares.get(name, ("", ""))[1] != "sent"
            and (device.next_claim_at_ms <= now_ms or self._machine.session_store.get(device.curve25519) is not None)
        ]

    def _must_change(self, room: Room, key: RoomKeyOut, audience: Audience, messages: int) -> bool:
        rotation = self._rooms.find_rotation(room)
        if (
            key.is_stale
            or key.messages + messages > max(rotation.messages, messages)
            or self._keystore.now_ms() - key.made_at_ms >= rotation.age_ms
        ):
            return True
        holders = self._keystore.trust.read_shares(key.session.id)
        return any(state == "sent" and name not in audience.trusted for name, (_, state) in holders.items())

    def _make_key(self, room: Room) -> RoomKeyOut:
        old = self._keystore.owed.read_room_key_out(room.room_id)
        if old is not None:
            self._keystore.trust.drop_shares(old.session.id)
        session = OutboundGroupSession()
        # The bot reads its own events too: it finds a send again by the delivery id inside.
        own = InboundGroupSession(session.session_key, self._machine.ed25519, self._machine.curve25519, room.room_id)
        if self._machine.inbound_group_store.add(own):
            self._keystore.crypto.save_inbound_group_session(own)
        return RoomKeyOut(room.room_id, session, self._keystore.now_ms(), 0, is_stale=False)

    # -- one-time keys of others ---------------------------------------------------------------------------------------------

    async def _claim(self, devices: list[Device]) -> None:
        body: dict[str, Any] = {"one_time_keys": {}, "timeout": int(_QUERY_TIMEOUT_S * 1000)}
        for device in devices:
            body["one_time_keys"].setdefault(device.user_id, {})[device.device_id] = "signed_curve25519"
        try:
            raw = await self._http.request(
                "keys_claim", "POST", "/_matrix/client/v3/keys/claim", body=body, timeout_s=_QUERY_TIMEOUT_S * 2, retry=False
            )
        except (WaitError, MatrixError) as error:
            _log.warning("one-time keys could not be claimed", devices=len(devices), error=str(error))
            return
        answered = raw.get("one_time_keys")
        found = answered if isinstance(answered, dict) else {}
        for start in range(0, len(devices), MESSAGES_A_REQUEST):
            part = devices[start : start + MESSAGES_A_REQUEST]
            await self._keystore.transaction("keys.claim", partial(self._settle_claims, part, found))

    def _settle_claims(self, devices: list[Device], found: dict[str, Any]) -> None:
        trust = self._keystore.trust
        for device in devices:
            is_started = False
            try:
                keys = found[device.user_id][device.device_id]
                name, key_object = next(iter(keys.items()))
                if str(name).startswith("signed_curve25519:") and isinstance(key_object, dict):
                    is_started = self._machine.start_session(device, key_object)
                    if not is_started:
                        self._keystore.spool.set_aside("one-time-key", "its signature is not the device's", {}, sender=device.user_id)
            except (KeyError, TypeError, AttributeError, StopIteration):
                pass
            except Unreadable as error:
                self._keystore.spool.set_aside("one-time-key", str(error), {}, sender=device.user_id)
            if is_started:
                trust.settle_claim(device.user_id, device.device_id)
            else:
                trust.postpone_claim(device.user_id, device.device_id, _CLAIM_PAUSES_MS)

    # -- what is owed to devices ---------------------------------------------------------------------------------------------

    async def flush(self) -> None:
        """Send the to-device messages that are owed, in order, each with its fixed transaction id."""
        async with self._flush_lock:
            while (owed := await self._keystore.read(self._keystore.owed.first_to_device)) is not None:
                path = f"/_matrix/client/v3/sendToDevice/{quote(owed.event_type, safe='')}/{owed.txn_id}"
                try:
                    if owed.messages is not None:
                        await self._http.request("to_device", "PUT", path, body={"messages": owed.messages}, timeout_s=60.0)
                except MatrixError as error:
                    _log.error("the homeserver refused to-device messages; they are dropped", type=owed.event_type, error=str(error))
                await self._keystore.transaction("keys.to_device.settle", partial(self._keystore.owed.settle_to_device, owed))
