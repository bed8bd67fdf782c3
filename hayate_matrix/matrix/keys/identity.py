"""The account's own identity: cross-signing keys that say that this device is the account's.

Promise: the keys are on disk before they are on the server; an identity that somebody else made is never overwritten.
How: made at the first start where the account has none, uploaded (identical uploads are harmless), the device signed with the self-signing
key, the server's copy checked; later starts compare and repair.
Not here: adopting an identity with its recovery key, and keeping the master key in secret storage. Until that exists all three seeds stay
in the sealed store.
"""

from __future__ import annotations

import base64
import json
import secrets
from typing import TYPE_CHECKING, Any

from hayate_matrix.errors import EncryptionError, MatrixError
from hayate_matrix.log import get_logger
from hayate_matrix.matrix.keys.signing import SigningKey, is_signed_by, to_canonical

if TYPE_CHECKING:
    from hayate_matrix.matrix.http import Http
    from hayate_matrix.matrix.keystore import KeyStore
    from hayate_matrix.matrix.machine import Machine

_log = get_logger(__name__)
_SECRET = "cross_signing"  # noqa: S105 - the name of a row
_USAGES = ("master", "self_signing", "user_signing")
_REPLACED = "Log in to an account that nobody has used in a client, in a new home: --home DIR"


class OwnIdentity:
    """Makes, uploads, verifies and repairs the account's cross-signing."""

    def __init__(self, keystore: KeyStore, http: Http, machine: Machine, *, password: str | None) -> None:
        self._keystore = keystore
        self._http = http
        self._machine = machine
        self._password = password

    async def check(self) -> bool:
        """Compare the server's keys of this device with those here, before anything is uploaded; return whether it has any.

        Raises:
            EncryptionError: they differ; see `check_device`.
        """
        shown = await self._query()
        self.check_device(shown)
        return self._shown_device(shown) is not None

    async def ensure(self) -> None:
        """Return when the server shows this device signed by the account's identity, and with the keys that are here.

        Raises:
            EncryptionError: the account's identity, or the device's keys there, are not the ones here; nothing was overwritten.
        """
        shown = await self._query()
        self.check_device(shown)
        seeds = await self._keystore.read(self._load)
        master_shown = self._shown_key(shown, "master_keys")
        if seeds is None:
            if master_shown is not None:
                problem = "The account already has an identity that was made in another client; this device can't sign itself with it."
                raise EncryptionError(problem, remedy=_REPLACED)
            seeds = await self._keystore.transaction("keys.identity.make", self._make)
        if master_shown is None:
            await self._upload(seeds)
            shown = await self._query()
            master_shown = self._shown_key(shown, "master_keys")
        if master_shown != seeds["master"].public or self._shown_key(shown, "self_signing_keys") != seeds["self_signing"].public:
            raise EncryptionError("The account's identity was replaced by another client.", remedy=_REPLACED)
        if not self._is_device_signed(shown, seeds):
            await self._sign_device(shown, seeds)
            if not self._is_device_signed(await self._query(), seeds):
                problem = "The homeserver did not keep the signature of this device."
                raise EncryptionError(problem, remedy="Look into the homeserver's log, then start again.")
            _log.info("the device is signed by the account's identity")

    def check_device(self, shown: dict[str, Any]) -> None:
        """Compare the server's keys of this device with those here (E2E-8).

        Raises:
            EncryptionError: they differ, or the server knows keys of a device whose private half is not here.
        """
        device = self._shown_device(shown)
        machine = self._machine
        if device is None:
            return
        keys = device.get("keys", {})
        mine = {f"curve25519:{machine.device_id}": machine.curve25519, f"ed25519:{machine.device_id}": machine.ed25519}
        if keys != mine:
            problem = f"The homeserver knows other keys for device {machine.device_id} than this store has."
            raise EncryptionError(
                problem,
                remedy="Put this device's matrix.db back. Where it is lost, take a new home and an account without an identity: --home DIR",
            )

    def _load(self) -> dict[str, SigningKey] | None:
        text = self._keystore.read_secret(_SECRET)
        if text is None:
            return None
        return {usage: SigningKey(base64.b64decode(seed)) for usage, seed in json.loads(text).items()}

    def _make(self) -> dict[str, SigningKey]:
        seeds = {usage: SigningKey(secrets.token_bytes(32)) for usage in _USAGES}
        self._keystore.write_secret(_SECRET, json.dumps({usage: base64.b64encode(key.seed).decode() for usage, key in seeds.items()}))
        return seeds

    async def _query(self) -> dict[str, Any]:
        body: dict[str, Any] = {"device_keys": {self._machine.user_id: []}}
        return await self._http.request("own_keys_query", "POST", "/_matrix/client/v3/keys/query", body=body)

    async def _upload(self, seeds: dict[str, SigningKey]) -> None:
        user_id = self._machine.user_id
        body: dict[str, Any] = {}
        for usage in _USAGES:
            key = seeds[usage]
            bare = {"user_id": user_id, "usage": [usage], "keys": {f"ed25519:{key.public}": key.public}}
            body[f"{usage}_key"] = bare if usage == "master" else seeds["master"].sign(bare, user_id)
        # The device signs the master key, so that clients which verified the device by hand carry the trust over.
        master = body["master_key"]
        signature = self._machine.account.sign(to_canonical(master).decode())
        body["master_key"] = {**master, "signatures": {user_id: {f"ed25519:{self._machine.device_id}": signature}}}
        path = "/_matrix/client/v3/keys/device_signing/upload"
        try:
            await self._http.request("identity_upload", "POST", path, body=body)
        except MatrixError as error:
            if "flows" not in error.body or self._password is None:
                problem = f"The homeserver did not take the account's identity ({error.errcode})."
                remedy = "Give the account's password once (HAYATE_MATRIX__PASSWORD or matrix.password_file) and start again."
                raise EncryptionError(problem, remedy=remedy) from error
            auth = {
                "type": "m.login.password",
                "identifier": {"type": "m.id.user", "user": user_id},
                "password": self._password,
                "session": error.body.get("session"),
            }
            await self._http.request("identity_upload_auth", "POST", path, body={**body, "auth": auth})
        _log.info("the account's identity was made and uploaded")

    async def _sign_device(self, shown: dict[str, Any], seeds: dict[str, SigningKey]) -> None:
        device = self._shown_device(shown)
        if device is None:
            raise EncryptionError(
                "The homeserver does not show this device's keys.", remedy="Look into the homeserver's log, then start again."
            )
        user_id = self._machine.user_id
        signed = seeds["self_signing"].sign({key: value for key, value in device.items() if key != "signatures"}, user_id)
        body = {user_id: {self._machine.device_id: signed}}
        answer = await self._http.request("identity_sign", "POST", "/_matrix/client/v3/keys/signatures/upload", body=body)
        if answer.get("failures"):
            # 200 does not mean taken; the check that follows decides, this says why.
            _log.error("the homeserver refused a signature", failures=json.dumps(answer["failures"])[:500])

    def _is_device_signed(self, shown: dict[str, Any], seeds: dict[str, SigningKey]) -> bool:
        device = self._shown_device(shown)
        key = seeds["self_signing"].public
        return device is not None and is_signed_by(device, self._machine.user_id, key, key)

    def _shown_device(self, shown: dict[str, Any]) -> dict[str, Any] | None:
        devices = shown.get("device_keys", {}).get(self._machine.user_id, {})
        device = devices.get(self._machine.device_id) if isinstance(devices, dict) else None
        return device if isinstance(device, dict) else None

    def _shown_key(self, shown: dict[str, Any], section: str) -> str | None:
        key = shown.get(section, {}).get(self._machine.user_id)
        keys = key.get("keys") if isinstance(key, dict) else None
        return str(next(iter(keys.values()))) if isinstance(keys, dict) and keys else None
