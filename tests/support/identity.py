"""Cross-signing by hand, for the bare bots that the real one is compared with: nio has none, and strict peers ignore unsigned devices."""

from __future__ import annotations

import base64
import json
import urllib.request
from typing import Any
from urllib.parse import quote

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat


def encode(data: bytes) -> str:
    """Return unpadded base64."""
    return base64.b64encode(data).decode().rstrip("=")


def canonical(content: dict[str, Any]) -> bytes:
    """Return canonical JSON, without signatures and unsigned."""
    kept = {key: value for key, value in content.items() if key not in ("signatures", "unsigned")}
    return json.dumps(kept, ensure_ascii=False, separators=(",", ":"), sort_keys=True).encode()


class Identity:
    """Master, self-signing and user-signing keys of one account."""

    def __init__(self, user_id: str) -> None:
        self.user_id = user_id
        self.keys = {usage: Ed25519PrivateKey.generate() for usage in ("master", "self_signing", "user_signing")}

    def public(self, usage: str) -> str:
        """Return the public key of `usage`, unpadded base64."""
        return encode(self.keys[usage].public_key().public_bytes(Encoding.Raw, PublicFormat.Raw))

    def sign(self, usage: str, content: dict[str, Any]) -> dict[str, Any]:
        """Return `content` with a signature by the key of `usage` added."""
        name = f"ed25519:{self.public(usage)}"
        signatures = {user: dict(made) for user, made in content.get("signatures", {}).items()}
        signatures.setdefault(self.user_id, {})[name] = encode(self.keys[usage].sign(canonical(content)))
        return {**content, "signatures": signatures}

    def published(self) -> dict[str, Any]:
        """Return the body of the upload of the three keys."""
        made: dict[str, Any] = {}
        for usage in self.keys:
            key = {"user_id": self.user_id, "usage": [usage], "keys": {f"ed25519:{self.public(usage)}": self.public(usage)}}
            made[f"{usage}_key"] = key if usage == "master" else self.sign("master", key)
        return made


def cross_sign(url: str, token: str, user_id: str, device_id: str) -> Identity:
    """Publish a new identity for the account and sign the device with it; blocking."""
    identity = Identity(user_id)
    _post(url, token, "/_matrix/client/v3/keys/device_signing/upload", identity.published())
    devices = _post(url, token, "/_matrix/client/v3/keys/query", {"device_keys": {user_id: [device_id]}})["device_keys"]
    device = {key: value for key, value in devices[user_id][device_id].items() if key not in ("signatures", "unsigned")}
    answer = _post(url, token, "/_matrix/client/v3/keys/signatures/upload", {user_id: {device_id: identity.sign("self_signing", device)}})
    assert not answer.get("failures"), answer
    return identity


def _post(url: str, token: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
    request = urllib.request.Request(  # noqa: S310  loopback, by our own hand
        url + quote(path), data=json.dumps(body).encode(), headers={"Authorization": f"Bearer {token}"}, method="POST"
    )
    with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310
        parsed: dict[str, Any] = json.loads(answer.read())
        return parsed
