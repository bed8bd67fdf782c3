"""The edge's workers: one loop receives, small ones follow it, each woken by what an answer calls for.

Promise: each rests on rows, so that a worker that was cut off begins again where it was; one that fails ends the edge.
How: `follow` is told of every answer that was applied, and wakes who has something to do.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from hayate_matrix.log import get_logger
from hayate_matrix.matrix.sync.watchdog import watch_sync

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from hayate_matrix.core.clock import Clock
    from hayate_matrix.core.deliveries import FactSink
    from hayate_matrix.core.ids import RoomId
    from hayate_matrix.matrix.http import Http
    from hayate_matrix.matrix.keys.devices import DeviceLists
    from hayate_matrix.matrix.keys.late import LateKeys
    from hayate_matrix.matrix.keys.sharing import RoomKeySharing
    from hayate_matrix.matrix.keys.upload import KeyUploads
    from hayate_matrix.matrix.keystore import KeyStore
    from hayate_matrix.matrix.rooms.membership import Memberships
    from hayate_matrix.matrix.send import Sender
    from hayate_matrix.matrix.sync.gaps import GapFiller
    from hayate_matrix.matrix.sync.loop import SyncLoop
    from hayate_matrix.matrix.sync.timeline import Applied

_log = get_logger(__name__)

_HANDED_AT_ONCE = 500
"""Facts handed to the harness in one step: one commit there, one here."""
_CHORES_S = 60.0
"""Pause between rounds of what nobody waits for: debts of room keys, overdue gaps, joins to be retried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What the workers drive."""

    sync: SyncLoop
    http: Http
    sender: Sender
    gaps: GapFiller
    memberships: Memberships
    uploads: KeyUploads
    devices: DeviceLists
    sharing: RoomKeySharing
    late: LateKeys


class Workers:
    """Receives, and does what answers call for, until it is stopped or something fails."""

    def __init__(self, keystore: KeyStore, clock: Clock, *, is_encryption_on: bool) -> None:
        self._keystore = keystore
        self._clock = clock
        self._is_encryption_on = is_encryption_on
        self._tasks: list[asyncio.Task[None]] = []
        self._has_facts = asyncio.Event()
        self._has_gaps = asyncio.Event()
        self._has_invites = asyncio.Event()
        self._keys_wanted = asyncio.Event()
        self._key_count: int | None = None
        self._has_unused_fallback: bool | None = None
        self._new_room_keys: set[str] = set()
        self._senders: set[str] = set()
        self._fault: asyncio.Future[None] | None = None
        self._parts: Parts
        self._learn_name: Callable[[], Awaitable[None]]
        self.on_reopened: Callable[[RoomId], Awaitable[None]] | None = None
        """Told of a room where something is held and that looks open again."""

    async def begin(self, parts: Parts, sink: FactSink, *, learn_name: Callable[[], Awaitable[None]]) -> None:
        """Begin to receive, and to do what earlier runs left."""
        self._parts = parts
        self._learn_name = learn_name
        self._fault = asyncio.get_running_loop().create_future()
        # A crash may have come after a key or a device list was kept and before the messages that waited for it were looked at again.
        self._new_room_keys |= await self._keystore.read(self._keystore.spool.list_unread_keys)
        self._senders |= await self._keystore.read(self._keystore.spool.list_unread_senders)
        self._has_facts.set()
        self._has_gaps.set()
        self._has_invites.set()
        self._keys_wanted.set()
        workers: tuple[tuple[str, Callable[[], Awaitable[None]]], ...] = (
            ("facts", lambda: self._hand_facts(sink)),
            ("keys", self._tend_keys),
            ("gaps", self._fill_gaps),
            ("invites", self._tend_memberships),
            ("chores", self._do_chores),
            ("sync", lambda: watch_sync(parts.sync, parts.http, self._clock)),
        )
        self._tasks = [asyncio.create_task(self._guard(name, work), name=f"edge.{name}") for name, work in workers]

    async def watch(self) -> None:
        """Return never; raise what ends the edge."""
        if self._fault is not None:
            await self._fault

    async def stop(self) -> None:
        """Stop all; what is under way is finished at its last commit."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        if self._fault is not None and not self._fault.cancel() and not self._fault.cancelled():
            self._fault.exception()  # told through `watch` to whoever still watches; asyncio need not complain that nobody did

    def fail(self, error: BaseException) -> None:
        """End the edge: `watch` raises this."""
        if self._fault is not None and not self._fault.done():
            self._fault.set_exception(error)

    async def follow(self, applied: Applied) -> None:
        """Wake who has something to do about an answer that was applied."""
        if applied.key_count is not None:
            self._key_count = applied.key_count
        if applied.has_unused_fallback is not None:
            self._has_unused_fallback = applied.has_unused_fallback
        self._parts.sender.forget_decisions()
        self._new_room_keys |= applied.new_room_keys
        self._senders |= applied.senders_to_query
        is_low = self._parts.uploads.is_low(applied.key_count, has_unused_fallback=applied.has_unused_fallback)
        if is_low or applied.new_room_keys or applied.senders_to_query or applied.has_outdated_lists:
            self._keys_wanted.set()
        wanted = ((applied.facts, self._has_facts), (applied.has_gaps, self._has_gaps), (applied.has_invites, self._has_invites))
        for is_wanted, event in wanted:
            if is_wanted:
                event.set()
        await self._release_held()

    async def _guard(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001 - a worker that dies in silence is a bot that hangs
            _log.error("a worker of the edge failed", worker=name, error=f"{type(error).__name__}: {error}", exc_info=True)
            self.fail(error)

    async def _hand_facts(self, sink: FactSink) -> None:
        while True:
            await self._has_facts.wait()
            self._has_facts.clear()
            while ready := await self._keystore.read(
                partial(self._keystore.spool.list_ready, _HANDED_AT_ONCE, self._parts.sender.note_denied)
            ):
                await sink.accept([row.fact for row in ready])
                if self._keystore.spool.note_handed(ready) >= _HANDED_AT_ONCE:
                    await self._keystore.transaction("edge.handed", self._keystore.spool.sweep)
                if len(ready) < _HANDED_AT_ONCE:
                    break  # what came meanwhile has set the event again

    async def _tend_keys(self) -> None:
        if not self._is_encryption_on:
            return
        while True:
            await self._keys_wanted.wait()
            self._keys_wanted.clear()
            keys, self._new_room_keys = self._new_room_keys, set()
            senders, self._senders = self._senders, set()
            if keys:
                await self._follow_late(await self._parts.late.retry_keys(keys))
            await self._refill_keys()
            answered = await self._parts.devices.refresh(only_due=True)
            unread = await self._keystore.read(self._keystore.spool.list_unread_senders)
            outdated = {user for user, _ in await self._keystore.read(self._keystore.trust.list_outdated)}
            # An unknown device is foreign only where its owner's list is known to be fresh: who could not be asked for is looked at later.
            self._senders |= senders & outdated
            if waiting := (answered | senders) & unread - outdated:
                await self._follow_late(await self._parts.late.retry_senders(waiting))

    async def _refill_keys(self) -> None:
        count, fallback = self._key_count, self._has_unused_fallback
        if await self._keystore.read(lambda: self._parts.uploads.needs(count, has_unused_fallback=fallback)):
            # What the server said is used up: the next sync says what there is then.
            self._key_count = self._has_unused_fallback = None
            await self._parts.uploads.refill(count, has_unused_fallback=fallback)

    async def _follow_late(self, applied: Applied) -> None:
        if applied.facts:
            self._has_facts.set()

    async def _fill_gaps(self) -> None:
        while True:
            await self._has_gaps.wait()
            self._has_gaps.clear()
            await self._parts.gaps.fill_all()
            self._has_facts.set()

    async def _tend_memberships(self) -> None:
        while True:
            await self._has_invites.wait()
            self._has_invites.clear()
            await self._parts.memberships.tend()

    async def _do_chores(self) -> None:
        while True:
            await self._clock.sleep(_CHORES_S)
            await self._parts.memberships.resolve_aliases()
            await self._learn_name()
            self._has_invites.set()
            if await self._parts.gaps.free_overdue():
                self._has_facts.set()
            if self._is_encryption_on:
                await self._parts.sharing.settle_debts()
            await self._keystore.transaction("edge.chores", self._clean_up)
            await self._release_held()

    def _clean_up(self) -> None:
        self._parts.sender.drop_settled()
        self._keystore.spool.sweep()

    async def _release_held(self) -> None:
        """Let the harness try again what was held for rooms that look open: unmuted, allowed or joined again."""
        if self.on_reopened is not None:
            for room_id in await self._parts.sender.take_reopened():
                await self.on_reopened(room_id)
                self._has_facts.set()
