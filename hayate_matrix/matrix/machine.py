"""nio's Olm machine with the decisions that it leaves open: what is believed, what is kept, what is refused.

Promise: no input makes it raise anything but `Unreadable`; a room message counts as its sender's only where the room key came from a
device that the sender's homeserver lists, and one (room key, index) opens one event for ever.
How: nio's account, Olm and Megolm sessions, read through our store; each decryption is checked against device rows and an index on disk.
Not here: asking for keys and handing them out (`keys/`), and what a readable event means (`facts`).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import vodozemac
from nio.crypto import InboundGroupSession, InboundSession, Olm, OlmAccount, OutboundSession, Session
from unpaddedbase64 import decode_base64, encode_base64

from hayate_matrix.log import get_logger

if TYPE_CHECKING:
    from hayate_matrix.core.ids import RoomId
    from hayate_matrix.matrix.keystore import KeyStore
    from hayate_matrix.matrix.keystore.crypto import OlmSessions, RoomKeys
    from hayate_matrix.matrix.keystore.trust import Device

_log = get_logger(__name__)

OLM = "m.olm.v1.curve25519-aes-sha2"
MEGOLM = "m.megolm.v1.aes-sha2"
DevicePolicy = Literal["cross-signed", "all"]

UnreadReason = Literal["no-key", "unknown-device", "unsigned-device", "foreign-device", "replay", "malformed", "refused-type"]
WAITING: frozenset[str] = frozenset({"no-key", "unknown-device", "unsigned-device"})
"""Reasons that can end: a key, a device list or a signature may still come. The others never do."""

_CRYPTO_ERRORS = (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError)
"""What vodozemac (its exceptions are ValueErrors), base64 and JSON raise on input that is not what it claims to be."""
_MAX_DEPTH = 64
"""JSON in a decrypted payload may nest this deep: more than any event of the specification."""


class Unreadable(Exception):
    """An encrypted event that can't be read or not be believed; `reason` says whether that can change."""

    def __init__(self, reason: UnreadReason, text: str, room_key_id: str = "") -> None:
        self.reason = reason
        self.room_key_id = room_key_id
        super().__init__(text)


@dataclass(frozen=True, slots=True)
class OlmPayload:
    """A to-device message that was decrypted and is addressed to this device."""

    type: str
    content: dict[str, Any]
    sender: str
    sender_key: str
    sender_ed25519: str


class Machine(Olm):
    """The device's keys. Every call is made in the edge's thread; calls that save, inside a transaction."""

    account: OlmAccount
    session_store: OlmSessions  # nio has containers of its own; these read when asked
    inbound_group_store: RoomKeys  # as above

    def __init__(self, keystore: KeyStore, *, devices: DevicePolicy) -> None:
        self._keystore = keystore
        self._device_policy = devices
        super().__init__(keystore.crypto.user_id, keystore.crypto.device_id, keystore.crypto)
        keystore.on_rollback.append(self.forget)

    def forget(self) -> None:
        """Make memory what the disk says, after a rollback: the sessions in memory are ahead of it."""
        account = self._keystore.crypto.load_account()
        if account is not None:
            self.account = account
        self.load()

    @property
    def curve25519(self) -> str:
        """This device's identity key."""
        return self.account.identity_keys["curve25519"]

    @property
    def ed25519(self) -> str:
        """This device's signing key."""
        return self.account.identity_keys["ed25519"]

    def is_trusted(self, device: Device) -> bool:
        """Whether room keys may go to the device and requests come from it (E2E-6)."""
        return not device.is_blacklisted and (self._device_policy == "all" or device.is_signed)

    # -- Olm -----------------------------------------------------------------------------------------------------------------

    def open_olm(self, sender: str, content: dict[str, Any]) -> OlmPayload:
        """Return what an `m.room.encrypted` to-device message says.

        Raises:
            Unreadable: not for this device, no session, malformed, or its claims do not fit the envelope.
        """
        try:
            sender_key = content["sender_key"]
            mine = content["ciphertext"][self.curve25519]
            kind, body = mine["type"], mine["body"]
            if content.get("algorithm") != OLM or not isinstance(sender_key, str) or kind not in (0, 1):
                raise Unreadable("malformed", "no Olm message for this device")
            plaintext = self._decrypt_olm(sender_key, kind, body)
            payload = _parse_json(plaintext)
            if payload["sender"] != sender or payload["recipient"] != self.user_id:
                raise Unreadable("malformed", "an Olm message names another sender or recipient than its envelope")
            if payload["recipient_keys"]["ed25519"] != self.ed25519:
                raise Unreadable("malformed", "an Olm message was made for another device")
            fingerprint = payload["keys"]["ed25519"]
            vodozemac.Ed25519PublicKey.from_base64(fingerprint)
            if not isinstance(payload["type"], str) or not isinstance(payload["content"], dict):
                raise Unreadable("malformed", "an Olm message has no type or content")
        except _CRYPTO_ERRORS as error:
            raise Unreadable("malformed", f"{type(error).__name__} in an Olm message") from error
        return OlmPayload(payload["type"], payload["content"], sender, sender_key, fingerprint)

    def _decrypt_olm(self, sender_key: str, kind: int, body: str) -> str:
        raw = decode_base64(body)
        if kind == 0:
            pre_key = vodozemac.PreKeyMessage.from_base64(body)
            for session in self.session_store[sender_key]:
                if session.matches(pre_key):
                    return self._decrypt_with(sender_key, session, pre_key.to_any())
            # The one-time key leaves the account only when the message really opened; account and session are saved together.
            fresh = InboundSession(self.account, pre_key, sender_key)
            plaintext = fresh.decrypt(pre_key, unicode_errors="strict")
            self.store.save_account(self.account)
            self.session_store.add(sender_key, fresh)
            self.store.save_session(sender_key, fresh)
            return plaintext
        message = vodozemac.AnyOlmMessage.normal(raw)
        for session in self.session_store[sender_key]:
            try:
                return self._decrypt_with(sender_key, session, message)
            except vodozemac.OlmDecryptionException:
                continue
        raise Unreadable("no-key", "no Olm session with the device opens its message")

    def _decrypt_with(self, sender_key: str, session: Session, message: vodozemac.AnyOlmMessage) -> str:
        plaintext = session.decrypt(message, unicode_errors="strict")
        self.store.save_session(sender_key, session)
        return plaintext

    def accept_room_key(self, payload: OlmPayload) -> tuple[RoomId, str] | None:
        """Keep the room key of an `m.room_key`; return its room and id, or None where it adds nothing.

        Raises:
            Unreadable: it is malformed.
        """
        content = payload.content
        try:
            if content["algorithm"] != MEGOLM:
                raise Unreadable("malformed", "a room key of an unknown algorithm")
            room_id, session_id = content["room_id"], content["session_id"]
            if not isinstance(room_id, str) or not room_id.startswith("!"):
                raise Unreadable("malformed", "a room key without a room")
            session = InboundGroupSession(content["session_key"], payload.sender_ed25519, payload.sender_key, room_id)
        except _CRYPTO_ERRORS as error:
            raise Unreadable("malformed", f"{type(error).__name__} in a room key") from error
        if session.id != session_id:
            raise Unreadable("malformed", "a room key with another id than it says")
        if not self.inbound_group_store.add(session):
            return None
        self.store.save_inbound_group_session(session)
        return session.room_id, session.id

    def start_session(self, device: Device, key_object: dict[str, Any]) -> bool:
        """Start an Olm session from a claimed one-time key; False where the key is not signed by the device.

        Raises:
            Unreadable: the key is malformed.
        """
        try:
            if not self.verify_json(dict(key_object), device.ed25519, device.user_id, device.device_id):
                return False
            session = OutboundSession(self.account, device.curve25519, key_object["key"])
        except _CRYPTO_ERRORS as error:
            raise Unreadable("malformed", f"{type(error).__name__} in a one-time key") from error
        self.session_store.add(device.curve25519, session)
        self.store.save_session(device.curve25519, session)
        return True

    def encrypt_olm(self, device: Device, event_type: str, content: dict[str, Any]) -> dict[str, Any] | None:
        """Return `content` encrypted for the device, the session saved; None where there is no session."""
        session = self.session_store.get(device.curve25519)
        if session is None:
            return None
        payload = {
            "sender": self.user_id,
            "sender_device": self.device_id,
            "keys": {"ed25519": self.ed25519},
            "recipient": device.user_id,
            "recipient_keys": {"ed25519": device.ed25519},
            "type": event_type,
            "content": content,
        }
        kind, raw = session.encrypt(json.dumps(payload, separators=(",", ":"))).to_parts()
        self.store.save_session(device.curve25519, session)
        body = str(encode_base64(raw))
        return {"algorithm": OLM, "sender_key": self.curve25519, "ciphertext": {device.curve25519: {"type": kind, "body": body}}}

    # -- Megolm --------------------------------------------------------------------------------------------------------------

    def open_room_event(
        self, raw: dict[str, Any], room_id: RoomId, *, devices_are_fresh: bool = False, is_own: bool = False
    ) -> dict[str, Any]:
        """Return the clear event of an `m.room.encrypted` room event.

        Args:
            raw: the event as the server gave it.
            room_id: the room that it came in.
            devices_are_fresh: the sender's devices were asked for after the event came, so that an unknown one is foreign.
            is_own: read one of the bot's own, which an earlier device of it may have sent; only to know it again, never to act on it.

        Raises:
            Unreadable: it can't be read or believed; `reason` says whether that can change.
        """
        content = raw["content"]
        session_id, ciphertext = content.get("session_id"), content.get("ciphertext")
        if content.get("algorithm") != MEGOLM or not isinstance(session_id, str) or not isinstance(ciphertext, str):
            raise Unreadable("malformed", "no Megolm event")
        session = self.inbound_group_store.find(room_id, session_id)
        if session is None:
            raise Unreadable("no-key", "the room key is not here", session_id)
        try:
            message = vodozemac.MegolmMessage.from_base64(ciphertext)
            if message.message_index() < session.first_known_index:
                raise Unreadable("no-key", "the room key begins later than the message", session_id)
            plaintext, index = session.decrypt(ciphertext)
        except _CRYPTO_ERRORS as error:
            raise Unreadable("malformed", f"{type(error).__name__} in a Megolm event", session_id) from error
        if not is_own:
            self._check_sender(str(raw["sender"]), session, devices_are_fresh=devices_are_fresh)
        payload = _read_payload(plaintext, room_id, session_id)
        inner = payload["content"]
        if not self._keystore.trust.note_index(session_id, index, str(raw["event_id"])):
            raise Unreadable("replay", "this index of the room key belongs to another event", session_id)
        relation = content.get("m.relates_to")
        if "m.relates_to" not in inner and isinstance(relation, dict):
            inner["m.relates_to"] = relation
        # Only these: what a sender writes into event_id, sender, unsigned, origin_server_ts or state_key of the payload is dropped.
        return {
            "type": payload["type"],
            "content": inner,
            "event_id": raw["event_id"],
            "sender": raw["sender"],
            "origin_server_ts": raw["origin_server_ts"],
        }

    def _check_sender(self, sender: str, session: InboundGroupSession, *, devices_are_fresh: bool) -> None:
        if sender == self.user_id and session.sender_key == self.curve25519:
            return
        trust = self._keystore.trust
        device = trust.find_device(sender, curve25519=session.sender_key)
        if device is None:
            if devices_are_fresh:
                raise Unreadable("foreign-device", "the room key came from a device that is not the sender's", session.id)
            raise Unreadable("unknown-device", "the device that the room key came from is not known yet", session.id)
        if device.ed25519 != session.ed25519:
            raise Unreadable("foreign-device", "the room key names another signing key than its device", session.id)
        if not self.is_trusted(device):
            raise Unreadable("unsigned-device", "the device is not signed by its owner", session.id)


def _read_payload(plaintext: str, room_id: RoomId, session_id: str) -> dict[str, Any]:
    """Return the decrypted payload: an event with type and content that names this room and is no state.

    Raises:
        Unreadable: it is anything else.
    """
    try:
        payload = _parse_json(plaintext)
    except _CRYPTO_ERRORS as error:
        raise Unreadable("malformed", f"{type(error).__name__} in a decrypted payload", session_id) from error
    if payload.get("room_id") != room_id:
        raise Unreadable("malformed", "the payload names another room", session_id)
    if not isinstance(payload.get("type"), str) or not isinstance(payload.get("content"), dict):
        raise Unreadable("malformed", "the payload has no type or content", session_id)
    if "state_key" in payload:
        raise Unreadable("refused-type", f"a state event ({payload['type']}) can't be encrypted", session_id)
    return payload


def _parse_json(text: str) -> dict[str, Any]:
    parsed = json.loads(text)
    if not isinstance(parsed, dict) or is_too_deep(parsed):
        raise ValueError("not an object of a sane depth")
    return parsed


def is_too_deep(value: object, limit: int = _MAX_DEPTH) -> bool:
    """Whether JSON nests deeper than `limit`."""
    level: list[object] = [value]
    for _ in range(limit):
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return False
    return True
