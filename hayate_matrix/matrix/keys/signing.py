"""Signatures over JSON, as the Matrix specification defines them (Appendices, Signing JSON)."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

import vodozemac
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

if TYPE_CHECKING:
    from collections.abc import Mapping

_SEED_BYTES = 32


def to_canonical(value: object) -> bytes:
    """Return canonical JSON: sorted keys, no blanks, UTF-8."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True, allow_nan=False).encode()


def is_signed_by(signed: Mapping[str, Any], user_id: str, key_id: str, public_key: str) -> bool:
    """Whether `signed` carries a good signature of this key; anything malformed is no signature."""
    try:
        signature = signed["signatures"][user_id][f"ed25519:{key_id}"]
        bare = {name: value for name, value in signed.items() if name not in ("signatures", "unsigned")}
        key = vodozemac.Ed25519PublicKey.from_base64(public_key)
        key.verify_signature(to_canonical(bare), vodozemac.Ed25519Signature.from_base64(signature))
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
        return False
    return True


class SigningKey:
    """An ed25519 key of the account's own identity."""

    def __init__(self, seed: bytes) -> None:
        if len(seed) != _SEED_BYTES:
            message = f"a signing key's seed has {_SEED_BYTES} bytes"
            raise ValueError(message)
        self.seed = seed
        self._key = Ed25519PrivateKey.from_private_bytes(seed)
        self.public = _encode(self._key.public_key().public_bytes_raw())

    def sign(self, value: Mapping[str, Any], user_id: str) -> dict[str, Any]:
        """Return `value` with this key's signature added."""
        bare = {name: part for name, part in value.items() if name not in ("signatures", "unsigned")}
        signature = _encode(self._key.sign(to_canonical(bare)))
        signatures = {user: dict(keys) for user, keys in value.get("signatures", {}).items()}
        signatures.setdefault(user_id, {})[f"ed25519:{self.public}"] = signature
        return {**bare, "signatures": signatures}


def _encode(raw: bytes) -> str:
    return base64.b64encode(raw).decode().rstrip("=")
