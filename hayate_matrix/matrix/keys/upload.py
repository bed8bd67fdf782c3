"""The device's own keys on the server: made, kept, uploaded, in that order.

Promise: a private half is on disk before its public half leaves; an upload that was cut off is sent again as it was.
How: the account and the body of the upload are written in one transaction; the body stays until the server took it.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from hayate_matrix.errors import MatrixError
from hayate_matrix.log import get_logger
from hayate_matrix.matrix.keys.signing import to_canonical
from hayate_matrix.matrix.machine import MEGOLM, OLM

if TYPE_CHECKING:
    from hayate_matrix.matrix.http import Http
    from hayate_matrix.matrix.keystore import KeyStore
    from hayate_matrix.matrix.machine import Machine

_log = get_logger(__name__)
_REFILL_BELOW = 38
"""New one-time keys are made when fewer than this are left on the server: three quarters of the 50 that vodozemac keeps there."""


class KeyUploads:
    """Keeps device keys, one-time keys and a fallback key on the server."""

    def __init__(self, keystore: KeyStore, http: Http, machine: Machine) -> None:
        self._keystore = keystore
        self._http = http
        self._machine = machine

    def needs(self, key_count: int | None, *, has_unused_fallback: bool | None) -> bool:
        """Whether something must be uploaded (edge's thread)."""
        is_owed = not self._machine.account.shared or self._keystore.owed.first_upload() is not None
        return is_owed or self.is_low(key_count, has_unused_fallback=has_unused_fallback)

    @staticmethod
    def is_low(key_count: int | None, *, has_unused_fallback: bool | None) -> bool:
        """Whether what the server says of the device's keys asks for new ones; a count of 0 counts, and an unknown one does not."""
        return (key_count is not None and key_count < _REFILL_BELOW) or has_unused_fallback is False

    async def refill(self, key_count: int | None, *, has_unused_fallback: bool | None, is_whole: bool = False) -> None:
        """Make what is missing, and upload it together with what an earlier start owed; `is_whole` where the server has nothing at all."""
        await self._keystore.transaction(
            "keys.upload.make", lambda: self._make(key_count, has_unused_fallback=has_unused_fallback, is_whole=is_whole)
        )
        await self.flush()

    async def flush(self) -> None:
        """Upload what is owed, oldest first."""
        while (owed := await self._keystore.read(self._keystore.owed.first_upload)) is not None:
            upload_id, _, body = owed
            try:
                if body is not None:
                    await self._http.request("keys_upload", "POST", "/_matrix/client/v3/keys/upload", body=body)
            except MatrixError as error:
                # "Already exists" with another key: an earlier copy of this store uploaded it. Its private half is not here, so at most
                # as many first messages as the server holds keys can't be read; the same answer again and again would be worse.
                _log.error("the homeserver refused the device's keys; new ones are made", error=str(error))
            await self._keystore.transaction("keys.upload.settle", partial(self._settle, upload_id, is_damaged=body is None))

    def _make(self, key_count: int | None, *, has_unused_fallback: bool | None, is_whole: bool) -> None:
        account, owed = self._machine.account, self._keystore.owed
        if owed.first_upload() is not None:
            return
        is_whole = is_whole or not account.shared
        body: dict[str, Any] = {}
        if is_whole:
            body["device_keys"] = self.make_device_keys()
        missing = account.max_one_time_keys - (0 if is_whole else key_count if key_count is not None else account.max_one_time_keys)
        if missing > 0:
            account.generate_one_time_keys(missing)
            body["one_time_keys"] = {
                f"signed_curve25519:{key_id}": self._sign_key(key) for key_id, key in account.one_time_keys["curve25519"].items()
            }
        if is_whole or has_unused_fallback is False:
            inner = account._account  # noqa: SLF001 - nio does not hand on vodozemac's fallback keys
            inner.generate_fallback_key()
            body["fallback_keys"] = {
                f"signed_curve25519:{key_id}": self._sign_key(key.to_base64(), is_fallback=True)
                for key_id, key in inner.fallback_key.items()
            }
        if body:
            self._keystore.crypto.save_account(account)
            owed.add_upload("keys", body)

    def _settle(self, upload_id: int, *, is_damaged: bool) -> None:
        self._keystore.owed.settle_upload(upload_id)
        if is_damaged:  # its keys are still unpublished ones of the account: the next upload takes them along
            return
        account = self._machine.account
        account.shared = True
        account.mark_keys_as_published()
        self._keystore.crypto.save_account(account)

    def make_device_keys(self) -> dict[str, Any]:
        """Return the signed object that other clients know this device by."""
        machine = self._machine
        keys = {
            "algorithms": [OLM, MEGOLM],
            "device_id": machine.device_id,
            "user_id": machine.user_id,
            "keys": {f"curve25519:{machine.device_id}": machine.curve25519, f"ed25519:{machine.device_id}": machine.ed25519},
        }
        return {**keys, "signatures": self._signatures(keys)}

    def _sign_key(self, key: str, *, is_fallback: bool = False) -> dict[str, Any]:
        bare: dict[str, Any] = {"key": key, "fallback": True} if is_fallback else {"key": key}
        return {**bare, "signatures": self._signatures(bare)}

    def _signatures(self, bare: dict[str, Any]) -> dict[str, dict[str, str]]:
        machine = self._machine
        return {machine.user_id: {f"ed25519:{machine.device_id}": machine.account.sign(to_canonical(bare).decode())}}
