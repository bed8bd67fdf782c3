"""People of the fabricated homeserver, with real keys: devices that sign, share room keys, encrypt and read, on vodozemac."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import vodozemac as v

from tests.support.identity import Identity, canonical

if TYPE_CHECKING:
    from tests.support.fabricated.server import FabricatedHomeserver

OLM = "m.olm.v1.curve25519-aes-sha2"
MEGOLM = "m.megolm.v1.aes-sha2"
ONE_TIME_KEYS = 2
"""Made at a time; a device that runs out makes more, as a real one does when its server tells the count."""


def unpadded(data: bytes) -> str:
    """Return unpadded base64."""
    return base64.b64encode(data).decode().rstrip("=")


def padded(text: str) -> bytes:
    """Return the bytes of unpadded base64."""
    return base64.b64decode(text + "=" * (-len(text) % 4))


@dataclass
class FabricatedDevice:
    """One device with its own keys; made through `FabricatedHomeserver.user`."""

    server: FabricatedHomeserver
    user_id: str
    device_id: str
    identity: Identity | None = None
    """Who signs it; None for a device that its owner has not signed."""
    account: Any = field(default_factory=v.Account)
    sessions: dict[str, Any] = field(default_factory=dict)
    """Olm sessions by the other side's curve25519 key."""
    room_keys: dict[str, Any] = field(default_factory=dict)
    """Outbound megolm sessions by room."""
    received: dict[str, Any] = field(default_factory=dict)
    """Inbound megolm sessions by session id, of keys that others sent to this device."""
    pool: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    """Signed one-time keys that were not given out yet."""

    @property
    def curve25519(self) -> str:
        """The identity key."""
        return str(self.account.curve25519_key.to_base64())

    @property
    def ed25519(self) -> str:
        """The signing key."""
        return str(self.account.ed25519_key.to_base64())

    def sign(self, content: dict[str, Any]) -> dict[str, Any]:
        """Return `content` signed by this device."""
        signature = self.account.sign(canonical(content)).to_base64()
        signatures = {user: dict(made) for user, made in content.get("signatures", {}).items()}
        signatures.setdefault(self.user_id, {})[f"ed25519:{self.device_id}"] = signature
        return {**content, "signatures": signatures}

    def device_keys(self, **changed: Any) -> dict[str, Any]:
        """Return the signed device keys, cross-signed where the device has an identity; `changed` fields are signed too."""
        keys: dict[str, Any] = {
            "user_id": self.user_id,
            "device_id": self.device_id,
            "algorithms": [OLM, MEGOLM],
            "keys": {f"curve25519:{self.device_id}": self.curve25519, f"ed25519:{self.device_id}": self.ed25519},
            **changed,
        }
        signed = self.sign(keys)
        return signed if self.identity is None else self.identity.sign("self_signing", signed)

    def fills_pool(self) -> None:
        """Make one-time keys ahead, so that a claim costs the homeserver nothing."""
        self.account.generate_one_time_keys(ONE_TIME_KEYS)
        made = self.account.one_time_keys.items()
        self.pool += [(f"signed_curve25519:{name}", self.sign({"key": key.to_base64()})) for name, key in made]
        self.account.mark_keys_as_published()

    def one_time_key(self) -> tuple[str, dict[str, Any]]:
        """Return the name and the signed body of a one-time key, as the server gives it out once."""
        if not self.pool:
            self.fills_pool()
        return self.pool.pop()

    # --- writing

    def olm_session(self, user_id: str, device_id: str) -> tuple[Any, dict[str, Any]]:
        """Return an Olm session with that device and its keys, claiming a one-time key where there is none yet."""
        keys = self.server.device_keys[user_id][device_id]
        curve = keys["keys"][f"curve25519:{device_id}"]
        if curve not in self.sessions:
            claimed = self.server.claim(user_id, device_id)
            assert claimed is not None, f"{user_id} {device_id} has no one-time key left"
            key = next(iter(claimed.values()))["key"]
            self.sessions[curve] = self.account.create_outbound_session(
                v.Curve25519PublicKey.from_base64(curve), v.Curve25519PublicKey.from_base64(key)
            )
        return self.sessions[curve], keys

    def encrypt_to_device(self, user_id: str, device_id: str, kind: str, content: dict[str, Any], **changed: Any) -> dict[str, Any]:
        """Return the encrypted to-device event; `changed` fields of the payload are what a liar writes."""
        session, keys = self.olm_session(user_id, device_id)
        payload = {
            "type": kind,
            "content": content,
            "sender": self.user_id,
            "sender_device": self.device_id,
            "recipient": user_id,
            "recipient_keys": {"ed25519": keys["keys"][f"ed25519:{device_id}"]},
            "keys": {"ed25519": self.ed25519},
            "sender_device_keys": self.device_keys(),
            **changed,
        }
        number, body = session.encrypt(json.dumps(payload).encode()).to_parts()
        curve = keys["keys"][f"curve25519:{device_id}"]
        sealed = {"algorithm": OLM, "sender_key": self.curve25519, "ciphertext": {curve: {"type": number, "body": unpadded(body)}}}
        return {"type": "m.room.encrypted", "sender": self.user_id, "content": sealed}

    def room_key(self, room_id: str) -> dict[str, Any]:
        """Return the content of `m.room_key` for the running outbound session of the room, at its present index."""
        if room_id not in self.room_keys:
            self.room_keys[room_id] = v.GroupSession()
        session = self.room_keys[room_id]
        return {
            "algorithm": MEGOLM,
            "room_id": room_id,
            "session_id": session.session_id,
            "session_key": session.session_key.to_base64(),
        }

    def shares_room_key(self, room_id: str, user_id: str, device_id: str) -> dict[str, Any]:
        """Send the room key to that device, and return the to-device event that was sent."""
        event = self.encrypt_to_device(user_id, device_id, "m.room_key", self.room_key(room_id))
        self.server.sends_to_device(user_id, device_id, event)
        return event

    def new_room_key(self, room_id: str) -> None:
        """Use another outbound session for the room from now on."""
        self.room_keys.pop(room_id, None)

    def encrypt(self, room_id: str, content: dict[str, Any], kind: str = "m.room.message", **changed: Any) -> dict[str, Any]:
        """Return the content of an `m.room.encrypted` event; `changed` fields of the payload are what a liar writes."""
        self.room_key(room_id)
        payload = json.dumps({"type": kind, "content": content, "room_id": room_id, **changed})
        return self.encrypt_bytes(room_id, payload.encode(), relates_to=content.get("m.relates_to"))

    def encrypt_bytes(self, room_id: str, plaintext: bytes, *, relates_to: Any = None) -> dict[str, Any]:
        """Return the content of an `m.room.encrypted` event around any plaintext."""
        self.room_key(room_id)
        session = self.room_keys[room_id]
        sealed = {
            "algorithm": MEGOLM,
            "sender_key": self.curve25519,
            "device_id": self.device_id,
            "session_id": session.session_id,
            "ciphertext": session.encrypt(plaintext).to_base64(),
        }
        return sealed if relates_to is None else {**sealed, "m.relates_to": relates_to}

    # --- reading

    def reads_to_device(self) -> list[dict[str, Any]]:
        """Return the payloads of what was sent to this device since the last call; room keys are kept for `reads`."""
        found = []
        for event in self.server.take_to_device(self.user_id, self.device_id):
            if event["type"] != "m.room.encrypted":
                found.append(event)
                continue
            part = event["content"]["ciphertext"].get(self.curve25519)
            assert part is not None, f"{self.device_id}: the event is not for this device: {event}"
            payload = json.loads(self._open(event["content"]["sender_key"], part["type"], padded(part["body"])))
            if payload["type"] == "m.room_key":
                session = v.InboundGroupSession(v.SessionKey(payload["content"]["session_key"]))
                self.received[session.session_id] = session
            found.append(payload)
        return found

    def _open(self, curve: str, number: int, body: bytes) -> bytes:
        message = v.AnyOlmMessage.from_parts(number, body)
        first = message.to_pre_key()
        known = self.sessions.get(curve)
        if first is not None and (known is None or not known.session_matches(first)):
            known, plaintext = self.account.create_inbound_session(v.Curve25519PublicKey.from_base64(curve), first)
            self.sessions[curve] = known
            return bytes(plaintext)
        assert known is not None, "a normal message without a session"
        return bytes(known.decrypt(message))

    def reads(self, content: dict[str, Any]) -> dict[str, Any]:
        """Return the payload of an `m.room.encrypted` content, with its index under `index`; KeyError where the key never came."""
        self.reads_to_device()
        opened = self.received[content["session_id"]].decrypt(v.MegolmMessage.from_base64(content["ciphertext"]))
        payload: dict[str, Any] = json.loads(opened.plaintext)
        return {**payload, "index": opened.message_index}


@dataclass
class FabricatedUser:
    """Somebody on the fabricated homeserver, with an identity and devices."""

    server: FabricatedHomeserver
    user_id: str
    identity: Identity | None
    devices: list[FabricatedDevice] = field(default_factory=list)

    @property
    def device(self) -> FabricatedDevice:
        """The first device."""
        return self.devices[0]

    def adds_device(self, device_id: str, *, cross_signed: bool = True) -> FabricatedDevice:
        """Make and publish one more device, and tell those who share a room."""
        device = FabricatedDevice(self.server, self.user_id, device_id, self.identity if cross_signed else None)
        self.devices.append(device)
        self.server.publishes(device)
        return device

    def loses_device(self, device: FabricatedDevice) -> None:
        """Remove a device, and tell those who share a room."""
        self.devices.remove(device)
        del self.server.device_keys[self.user_id][device.device_id]
        self.server.marks_changed(self.user_id)
