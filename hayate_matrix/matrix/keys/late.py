"""Messages whose key or whose sender's device list came later: tried again when it does, answered once (E2E-4)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from hayate_matrix.matrix.sync.timeline import Applied, Timeline

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hayate_matrix.matrix.keystore import KeyStore


class LateKeys:
    """Retries unread events; the rows are `undecryptable` of the spool."""

    def __init__(self, keystore: KeyStore, timeline: Timeline) -> None:
        self._keystore = keystore
        self._timeline = timeline

    async def retry_keys(self, room_key_ids: Iterable[str]) -> Applied:
        """Try events that waited for these room keys."""
        applied = Applied()
        for room_key_id in room_key_ids:
            await self._keystore.transaction("keys.late", partial(self._retry, applied, room_key_id=room_key_id))
        return applied

    async def retry_senders(self, senders: Iterable[str]) -> Applied:
        """Try events of these senders, whose devices were just asked for."""
        applied = Applied()
        for sender in senders:
            await self._keystore.transaction("keys.late_device", partial(self._retry, applied, sender=sender))
        return applied

    def _retry(self, applied: Applied, *, room_key_id: str | None = None, sender: str | None = None) -> None:
        for unread in self._keystore.spool.list_unread(room_key_id=room_key_id, sender=sender):
            self._timeline.retry_unread(unread, applied, devices_are_fresh=sender is not None)
