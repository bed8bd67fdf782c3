"""Device lists of others: asked for in batches, believed one user and one device at a time.

Promise: what is known of a user's devices is what the server said after the last change; one bad device or user spoils no other; a device
that changes its keys is not believed.
Not here: who gets a room key (`sharing`).
"""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Any, TypeGuard

from hayate_matrix.core.allowlist import find_server
from hayate_matrix.core.ids import DeviceId, UserId
from hayate_matrix.errors import MatrixError, WaitError
from hayate_matrix.log import get_logger
from hayate_matrix.matrix.keys.signing import is_signed_by
from hayate_matrix.matrix.keystore.trust import Device

if TYPE_CHECKING:
    from collections.abc import Collection

    from hayate_matrix.matrix.http import Http
    from hayate_matrix.matrix.keystore import KeyStore

_log = get_logger(__name__)

BATCH_USERS = 250
"""Users in one `/keys/query`: larger requests time out on remote servers (audit of matrix-nio, 2.14: 5,001 in one)."""
_PAUSES_MS = (15_000, 60_000, 300_000, 1_800_000)
"""Pauses before a user whose server did not answer is asked for again."""
_KEY = re.compile(r"[A-Za-z0-9+/]{43}")
"""Unpadded base64 of 32 bytes: every ed25519 and curve25519 key."""


class DeviceLists:
    """Asks for device lists and writes what can be believed."""

    def __init__(self, keystore: KeyStore, http: Http, own_user_id: UserId, own_device_id: DeviceId) -> None:
        self._keystore = keystore
        self._http = http
        self._own = (own_user_id, own_device_id)

    async def refresh(self, among: Collection[str] | None = None, *, timeout_s: float = 15.0, only_due: bool = False) -> set[UserId]:
        """Ask for users whose lists are out of date; return those that were answered.

        Args:
            among: only these users; None for all.
            timeout_s: bound on one batch; who is not answered in time stays out of date and is asked for again later.
            only_due: leave out users whose server did not answer lately.
        """
        answered: set[UserId] = set()
        asked: set[UserId] = set()
        while True:
            now_ms = self._keystore.now_ms() if only_due else None
            outdated = await self._keystore.read(partial(self._keystore.trust.list_outdated, among=among, now_ms=now_ms))
            batch = [(user, change) for user, change in outdated if user not in asked][:BATCH_USERS]
            if not batch:
                return answered
            asked.update(user for user, _ in batch)
            body = {"device_keys": {user: [] for user, _ in batch}, "timeout": int(timeout_s * 1000 * 2 / 3)}
            try:
                raw = await self._http.request(
                    "keys_query", "POST", "/_matrix/client/v3/keys/query", body=body, timeout_s=timeout_s, retry=False
                )
            except (WaitError, MatrixError) as error:
                _log.warning("device lists could not be asked for", users=len(batch), error=str(error))
                return answered
            answered |= await self._keystore.transaction("keys.devices", partial(self._settle, batch, raw))

    def _settle(self, batch: list[tuple[UserId, int]], raw: dict[str, Any]) -> set[UserId]:
        trust, spool = self._keystore.trust, self._keystore.spool
        failures = raw.get("failures")
        failed = set(failures) if isinstance(failures, dict) else set()
        answered: set[UserId] = set()
        for user_id, change in batch:
            section = _part(raw, "device_keys").get(user_id)
            if find_server(user_id) in failed:
                trust.postpone_query(user_id, _PAUSES_MS)
                continue
            self_signing = self._settle_identity(user_id, raw)
            devices = section if isinstance(section, dict) else {}
            for device_id, device in devices.items():
                problem = self._settle_device(user_id, device_id, device, self_signing)
                if problem:
                    spool.set_aside("device", problem, {device_id: device}, sender=user_id)
            for known in trust.list_devices(user_id):
                if known.device_id not in devices:
                    trust.save_device(Device(known.user_id, known.device_id, known.ed25519, known.curve25519, is_deleted=True))
            trust.settle_query(user_id, change)
            answered.add(user_id)
        return answered

    def _settle_identity(self, user_id: str, raw: dict[str, Any]) -> str | None:
        """Write the user's identity; return the self-signing key where its master key signs it."""
        master_object = _part(raw, "master_keys").get(user_id)
        signing_object = _part(raw, "self_signing_keys").get(user_id)
        master = _read_key(master_object, user_id, "master")
        signing = _read_key(signing_object, user_id, "self_signing")
        if master is None:
            self._keystore.trust.write_identity(user_id, None, None)
            return None
        if not isinstance(signing_object, dict) or not is_signed_by(signing_object, user_id, master, master):
            signing = None
        self._keystore.trust.write_identity(user_id, master, signing)
        return signing

    def _settle_device(self, user_id: UserId, device_id: object, device: object, self_signing: str | None) -> str:
        """Write one device; return why it was not believed, if it was not."""
        if (user_id, device_id) == self._own:
            return ""
        if (
            not isinstance(device_id, str)
            or not isinstance(device, dict)
            or (device.get("user_id"), device.get("device_id")) != (user_id, device_id)
        ):
            return "no device object, or one that names another user or device"
        keys = device.get("keys")
        keys = keys if isinstance(keys, dict) else {}
        ed25519, curve25519 = keys.get(f"ed25519:{device_id}"), keys.get(f"curve25519:{device_id}")
        if not _is_key(ed25519) or not _is_key(curve25519):
            return "the device's keys are malformed"
        if not is_signed_by(device, user_id, device_id, ed25519):
            return "the device is not signed by itself"
        trust = self._keystore.trust
        known = [old for old in trust.list_devices(user_id, with_deleted=True) if old.device_id == device_id]
        if known and (known[0].ed25519, known[0].curve25519) != (ed25519, curve25519):
            return "the device shows other keys than before"
        is_signed = self_signing is not None and is_signed_by(device, user_id, self_signing, self_signing)
        trust.save_device(Device(user_id, DeviceId(device_id), ed25519, curve25519, is_signed=is_signed))
        return ""


def _part(raw: dict[str, Any], name: str) -> dict[str, Any]:
    part = raw.get(name)
    return part if isinstance(part, dict) else {}


def _is_key(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and _KEY.fullmatch(value) is not None


def _read_key(key_object: object, user_id: str, usage: str) -> str | None:
    if not isinstance(key_object, dict) or key_object.get("user_id") != user_id:
        return None
    usages, keys = key_object.get("usage"), key_object.get("keys")
    if not isinstance(usages, list) or usage not in usages or not isinstance(keys, dict) or len(keys) != 1:
        return None
    name, key = next(iter(keys.items()))
    return key if _is_key(key) and name == f"ed25519:{key}" else None
