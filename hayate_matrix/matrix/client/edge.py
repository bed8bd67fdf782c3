"""The edge as the rest of the program sees it: opened, started, asked, stopped.

Promise: what a sync brought is handed to the harness exactly as often as it takes to be durable there, in the order of the rooms.
How: the parts are wired here, the account and the device's keys put in order, and then the workers receive (`workers`).
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal
from urllib.parse import quote

from hayate_matrix.errors import HayateError, MatrixError, StopError, WaitError
from hayate_matrix.log import get_logger
from hayate_matrix.matrix.client.workers import Parts, Workers
from hayate_matrix.matrix.http import room_path
from hayate_matrix.matrix.keys.devices import DeviceLists
from hayate_matrix.matrix.keys.identity import OwnIdentity
from hayate_matrix.matrix.keys.late import LateKeys
from hayate_matrix.matrix.keys.sharing import RoomKeySharing
from hayate_matrix.matrix.keys.upload import KeyUploads
from hayate_matrix.matrix.machine import Machine
from hayate_matrix.matrix.rooms import Rooms
from hayate_matrix.matrix.rooms.membership import Memberships
from hayate_matrix.matrix.send import Sender
from hayate_matrix.matrix.sync.apply import Applier
from hayate_matrix.matrix.sync.gaps import GapFiller
from hayate_matrix.matrix.sync.loop import SyncLoop
from hayate_matrix.matrix.sync.timeline import Timeline

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from hayate_matrix.core.allowlist import Policy
    from hayate_matrix.core.clock import Clock
    from hayate_matrix.core.deliveries import FactSink, Gateway
    from hayate_matrix.core.ids import DeviceId, EventId, RoomId, UserId
    from hayate_matrix.matrix.account import Account
    from hayate_matrix.matrix.http import Http
    from hayate_matrix.matrix.keystore import KeyStore

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeOptions:
    """Plain values out of the settings."""

    policy: Policy
    devices: Literal["cross-signed", "all"] = "cross-signed"
    is_encryption_on: bool = True
    leave_denied: bool = False
    backfill_limit: int = 1000
    backlog_age_s: int = 86_400
    password: str | None = None


class Edge:
    """Everything between the homeserver and the harness."""

    def __init__(
        self, keystore: KeyStore, http: Http, account: Account, clock: Clock, options: EdgeOptions, *, may_take: Callable[[], bool]
    ) -> None:
        self._keystore = keystore
        self._http = http
        self._account = account
        self._clock = clock
        self._options = options
        self._may_take = may_take
        self._login_lock = asyncio.Lock()
        self._workers = Workers(keystore, clock, is_encryption_on=options.is_encryption_on)
        self.is_cross_signed: bool | None = None
        self.display_names: tuple[str, ...] = ()
        """What people call the bot, as its profile says; from the last run until the homeserver has answered."""
        self.rooms: Rooms
        self.sync: SyncLoop
        self._sender: Sender
        http.on_unknown_token = self._renew_token

    @property
    def user_id(self) -> UserId:
        """The bot's own user id."""
        return self._account.credentials.user_id

    @property
    def device_id(self) -> DeviceId:
        """The bot's device."""
        return self._account.credentials.device_id

    def set_on_reopened(self, tell: Callable[[RoomId], Awaitable[None]]) -> None:
        """Have `tell` called with a room where something is held and that looks open again."""
        self._workers.on_reopened = tell

    @property
    def gateway(self) -> Gateway:
        """How the harness reaches rooms; usable after `open`."""
        return self._sender

    async def open(self) -> None:
        """Open the key store and build the parts; nothing is asked of the homeserver yet.

        Raises:
            StopError: the store can't be used, or belongs to another device.
        """
        credentials = self._account.credentials
        await self._keystore.open(credentials.user_id, credentials.device_id)
        self._machine = await self._keystore.transaction("edge.open", self._build_machine)
        self._devices = DeviceLists(self._keystore, self._http, credentials.user_id, credentials.device_id)
        self._sharing = RoomKeySharing(self._keystore, self._http, self._machine, self.rooms, self._devices)
        self._uploads = KeyUploads(self._keystore, self._http, self._machine)
        self._identity = OwnIdentity(self._keystore, self._http, self._machine, password=self._options.password)
        self._timeline = Timeline(self._keystore, self._machine, self.rooms)
        self._applier = Applier(self._keystore, self._machine, self.rooms, self._timeline)
        self._late = LateKeys(self._keystore, self._timeline)
        self.sync = SyncLoop(
            self._keystore,
            self._http,
            self._applier,
            self._clock,
            backlog_age_ms=self._options.backlog_age_s * 1000,
            own_user_id=credentials.user_id,
            on_applied=self._workers.follow,
            may_take=self._may_take,
        )
        self._gaps = GapFiller(
            self._keystore,
            self._http,
            self.rooms,
            self._timeline,
            backfill_limit=self._options.backfill_limit,
            find_moment=self.sync.find_moment,
        )
        self._memberships = Memberships(self._keystore, self._http, self.rooms, leave_denied=self._options.leave_denied)
        self._sender = Sender(
            self._keystore, self._http, self._machine, self.rooms, self._sharing, is_encryption_on=self._options.is_encryption_on
        )

    async def start(self, sink: FactSink) -> None:
        """Check the account, put the device's keys in order, and begin to receive.

        Raises:
            StopError: the account, its device or its identity can't be used.
        """
        await self._account.check()
        if self._options.is_encryption_on:
            await self._prepare_keys()
        await self._memberships.resolve_aliases()
        await self._learn_name()
        if await self._was_rolled_back():
            self.sync.rebase()
        parts = Parts(
            sync=self.sync,
            http=self._http,
            sender=self._sender,
            gaps=self._gaps,
            memberships=self._memberships,
            uploads=self._uploads,
            devices=self._devices,
            sharing=self._sharing,
            late=self._late,
        )
        await self._workers.begin(parts, sink, learn_name=self._learn_name)

    async def watch(self) -> None:
        """Return never; raise what ends the edge."""
        await self._workers.watch()

    async def stop(self) -> None:
        """Stop receiving and close the store; what is under way is finished at its last commit."""
        await self._workers.stop()
        await self._http.close()
        await self._keystore.close()

    async def read_counts(self) -> dict[str, int]:
        """Return what the operator may ask for, by name."""
        return await self._keystore.read(self._count)

    async def list_unsigned_senders(self) -> list[str]:
        """Return who is not heard because they have not signed the device that they write from."""
        return await self._keystore.read(self._keystore.spool.list_unsigned_senders)

    async def list_alias_troubles(self) -> dict[str, str]:
        """Return the aliases of the allowlist that serve no room, each with "unresolved" or "moved"."""
        return await self._keystore.read(self.rooms.list_alias_troubles)

    def is_served(self, room_id: RoomId) -> bool:
        """Whether a room is on the allowlist now; where it is not, `on_reopened` tells when it is. For other threads, like `read_power`."""
        return self._keystore.read_blocking(lambda: self._sender.note_denied(room_id))

    def read_power(self, room_id: RoomId, user_id: UserId) -> int | None:
        """Return the power level of a user in a room that the bot is in; called from the store's thread, which waits for the edge's."""
        return self._keystore.read_blocking(lambda: self.rooms.find_power(room_id, user_id))

    async def find_reference(self, room_id: RoomId, event_id: EventId) -> str | None:
        """Return the text of an event that a message replies to, fetched and decrypted if need be; best effort, never raises."""
        try:
            event = await self._http.request("reference", "GET", room_path(room_id, "event", event_id), timeout_s=10.0, retry=False)
            return await self._keystore.transaction("edge.reference", lambda: self._timeline.read_text(event, room_id))
        except HayateError as error:
            _log.info("the message that was replied to can't be had", room=room_id, error=str(error))
            return None

    # -- start ---------------------------------------------------------------------------------------------------------------

    def _build_machine(self) -> Machine:
        self.rooms = Rooms(self._keystore, self._options.policy)
        return Machine(self._keystore, devices=self._options.devices)

    async def _prepare_keys(self) -> None:
        had_uploaded = await self._keystore.read(lambda: self._machine.account.shared)
        is_shown = await self._identity.check()
        await self._uploads.flush()
        # Keys that were there once are gone with a device that was logged out: the login that followed made the same device anew.
        is_gone = had_uploaded and not is_shown
        if is_gone or await self._keystore.read(lambda: not self._machine.account.shared):
            await self._uploads.refill(None, has_unused_fallback=None, is_whole=True)
        await self._identity.ensure()
        self.is_cross_signed = True

    async def _learn_name(self) -> None:
        """Ask for the bot's display name; the one of the last run counts until the homeserver answers."""
        name = await self._keystore.read(lambda: self._keystore.read_meta("display_name"))
        path = f"/_matrix/client/v3/profile/{quote(self.user_id, safe='')}/displayname"
        try:
            answer = await self._http.request("display_name", "GET", path, timeout_s=10.0, retry=False)
            fresh = answer.get("displayname")
        except (MatrixError, WaitError):
            fresh = None
        if isinstance(fresh, str) and fresh and fresh != name:
            name = fresh
            await self._keystore.transaction("edge.name", partial(self._keystore.write_meta, "display_name", fresh))
        self.display_names = (name,) if name else ()

    async def _was_rolled_back(self) -> bool:
        """Whether the homeserver no longer has the last event that the bot saw: it was restored from an older copy (IN-10).

        A wrong yes costs one larger sync, since known events are known: so an event that is gone for another reason does no harm.
        """
        recent = await self._keystore.read(lambda: self._keystore.spool.list_recent(limit=1))
        for room_id, event_id in recent:
            try:
                await self._http.request("probe", "GET", room_path(room_id, "event", event_id))
            except MatrixError as error:
                if error.errcode == "M_NOT_FOUND":
                    _log.error("the homeserver has lost the last event that the bot saw; known rooms go on where they were")
                    return True
        return False

    async def _renew_token(self, token: str, error: MatrixError) -> bool:
        async with self._login_lock:
            if token != self._http.access_token:
                return True
            try:
                await self._account.recover(error)
            except StopError as stop:
                self._workers.fail(stop)
                return False
            return True

    def _count(self) -> dict[str, int]:
        spool = self._keystore.spool
        unread = spool.count_unread()
        return {
            **spool.read_counters(),
            **{f"unread.{reason}": number for reason, number in unread.items()},
            **self.rooms.count(),
            "undecryptable": sum(unread.values()),
            "unsigned": unread.get("unsigned-device", 0),
            "quarantined": spool.count_set_aside(),
            "withheld_devices": self._keystore.trust.count_refused(),
            "intake": spool.count_waiting(),
        }
