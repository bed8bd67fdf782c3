"""The client under a person: mautrix's crypto machine, handed one sync response at a time, in order, so that nothing races."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote

import aiohttp

from tests.support.person.read import Read, Unread

if TYPE_CHECKING:
    from hayate_matrix.demo.homeserver import Homeserver, Login

HAS_OLM = importlib.util.find_spec("olm") is not None and importlib.util.find_spec("mautrix") is not None
WHY_NO_OLM = "python-olm is not installed (it has wheels up to Python 3.12): the strict peer can't be run"

if HAS_OLM:
    from mautrix.client import Client
    from mautrix.client.state_store import MemoryStateStore
    from mautrix.crypto import OlmMachine
    from mautrix.crypto.cross_signing_key import CrossSigningSeeds
    from mautrix.crypto.store import MemoryCryptoStore
    from mautrix.types import DeviceLists, DeviceOTKCount, EncryptedEvent, StateEvent, ToDeviceEvent, TrustState, UserID

POLL_S = 20
TIMEOUT_S = 30.0

POLL_S = 20
TIMEOUT_S = 30.0


if HAS_OLM:

    class _CryptoStore(MemoryCryptoStore):
        """mautrix's store in memory, with the second put of a cross-signing key mended and the indices kept for the tests."""

        def __init__(self, account_id: str) -> None:
            super().__init__(account_id, "pickle")
            self.last_index = -1

        async def put_cross_signing_key(self, user_id: Any, usage: Any, key: Any) -> None:
            current = self._cross_signing_keys.setdefault(user_id, {}).get(usage)
            kind = type(current) if current is not None else None
            if current is None or kind is None:
                await super().put_cross_signing_key(user_id, usage, key)
            else:
                self._cross_signing_keys[user_id][usage] = kind(key=key, first=current.first)

        async def drop_signatures_by_key(self, signer: Any) -> int:
            return len(self._signatures.pop(signer, {}))

        async def validate_message_index(self, sender_key: Any, session_id: Any, event_id: Any, index: int, timestamp: int) -> bool:
            self.last_index = index
            return bool(await super().validate_message_index(sender_key, session_id, event_id, index, timestamp))

    class _StateStore(MemoryStateStore):
        async def find_shared_rooms(self, user_id: Any) -> list[Any]:
            return [room for room, members in self.members.items() if user_id in members]


@dataclass(eq=False)
class Syncing:
    """One device of somebody: its keys, and what it has read."""

    homeserver: Homeserver
    login: Login
    password: str
    url: str | None = None
    seeds: Any = None
    read: list[Read] = field(default_factory=list)
    """Every event of every room that could be read, in the order of the server."""
    unread: list[Unread] = field(default_factory=list)
    """Events that can't be decrypted; one whose key comes later moves to `read` and `late`."""
    late: list[Read] = field(default_factory=list)
    withheld: list[dict[str, Any]] = field(default_factory=list)
    """Contents of `m.room_key.withheld` that came."""
    to_device: list[dict[str, Any]] = field(default_factory=list)
    """Other to-device events, as they came."""
    refused: list[str] = field(default_factory=list)
    """Encrypted to-device events that could not be read, and why."""
    typing: dict[str, list[str]] = field(default_factory=dict)
    receipts: list[tuple[str, str, str]] = field(default_factory=list)
    """(room, event, user) of read receipts."""
    members: dict[str, dict[str, str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._since: str | None = None
        self._seen: set[str] = set()
        self._task: asyncio.Task[None] | None = None
        self._fault: BaseException | None = None
        self._known: set[str] = set()
        # mautrix keeps a room key that it was sharing while a member came or went; one thing at a time keeps the peer itself honest.
        self._crypto_lock = asyncio.Lock()

    @property
    def user_id(self) -> str:
        """The full user id."""
        return self.login.user_id

    @property
    def device_id(self) -> str:
        """The device that this object speaks as."""
        return self.login.device_id

    async def __aenter__(self) -> Self:
        """Return the open person."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close."""
        await self.close()

    async def open(self, *, cross_signed: bool = True) -> None:
        """Publish keys, cross-sign this device and start syncing."""
        if not HAS_OLM:
            raise RuntimeError(WHY_NO_OLM)
        self._http = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=TIMEOUT_S + POLL_S))
        self._states = _StateStore()
        self._store = _CryptoStore(self.user_id)
        self.client = Client(
            mxid=UserID(self.user_id),
            device_id=self.device_id,
            base_url=self.url or self.homeserver.url,
            token=self.login.access_token,
            client_session=self._http,
            state_store=self._states,
        )
        self.crypto = OlmMachine(self.client, self._store, self._states)
        self.client.crypto = self.crypto
        self.crypto.send_keys_min_trust = TrustState.CROSS_SIGNED_UNTRUSTED
        self.crypto.share_keys_min_trust = TrustState.CROSS_SIGNED_UNTRUSTED
        await self.crypto.load()
        await self.crypto.share_keys(0)
        if cross_signed:
            if self.seeds is None:
                self.seeds = CrossSigningSeeds.generate()
                await self.crypto._publish_cross_signing_keys(self.seeds.to_keys())
            else:
                self.crypto._import_cross_signing_keys(self.seeds)
            await self.crypto.sign_own_device(self.crypto.own_identity)
        await self._sync_once(poll_s=0)
        self._task = asyncio.create_task(self._sync_for_ever(), name=f"person {self.user_id}")

    async def close(self) -> None:
        """Stop syncing and close the connections."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None
        await self._http.close()

    async def log_out(self) -> None:
        """Remove this device from the account, and close."""
        await self.ask("POST", "/_matrix/client/v3/logout", {})
        await self.close()

    async def reset_identity(self) -> None:
        """Make a new cross-signing identity, as somebody does who lost the recovery key."""
        self.seeds = CrossSigningSeeds.generate()
        auth = {
            "type": "m.login.password",
            "identifier": {"type": "m.id.user", "user": self.user_id},
            "password": self.password,
        }
        try:
            await self.crypto._publish_cross_signing_keys(self.seeds.to_keys())
        except Exception as error:  # noqa: BLE001  mautrix has no class for the interactive step
            session = getattr(error, "body", None) or {}
            if isinstance(session, dict) and "session" in session:
                auth["session"] = session["session"]
            await self.crypto._publish_cross_signing_keys(self.seeds.to_keys(), auth=auth)
        await self.crypto.sign_own_device(self.crypto.own_identity)

    # --- requests

    async def request(self, method: str, path: str, body: Any = None, query: dict[str, str] | None = None) -> tuple[int, dict[str, Any]]:
        """Make one request as this device and return status and body."""
        url = (self.url or self.homeserver.url) + path
        headers = {"Authorization": f"Bearer {self.login.access_token}"}
        async with self._http.request(method, url, json=body, params=query, headers=headers) as answer:
            text = await answer.text()
            try:
                parsed = json.loads(text)
            except ValueError:
                parsed = {"text": text}
            return answer.status, parsed

    async def ask(self, method: str, path: str, body: Any = None, query: dict[str, str] | None = None) -> dict[str, Any]:
        """Like `request`, for what has to work."""
        status, answer = await self.request(method, path, body, query)
        assert status == 200, f"{method} {path} was answered {status}: {answer}"
        return answer

    # --- syncing

    def is_alive(self) -> bool:
        """Return True, or raise what ended syncing."""
        if self._fault is not None:
            raise self._fault
        return True

    async def _sync_for_ever(self) -> None:
        while True:
            try:
                await self._sync_once(poll_s=POLL_S)
            except (aiohttp.ClientError, TimeoutError, OSError):
                await asyncio.sleep(0.2)
            except asyncio.CancelledError:
                raise
            except BaseException as error:
                self._fault = error
                raise

    async def _sync_once(self, *, poll_s: int) -> None:
        query = {"timeout": str(poll_s * 1000), "set_presence": "offline"}
        if self._since is not None:
            query["since"] = self._since
        query["filter"] = json.dumps({"room": {"timeline": {"limit": 100}}, "presence": {"not_types": ["*"]}})
        status, data = await self.request("GET", "/_matrix/client/v3/sync", None, query)
        if status != 200:
            if status in (401, 403):
                message = f"{self.user_id} can't sync: {status} {data}"
                raise AssertionError(message)
            await asyncio.sleep(0.2)
            return
        async with self._crypto_lock:
            await self._apply(data, self._since)
        self._since = data["next_batch"]

    async def _apply(self, data: dict[str, Any], since: str | None) -> None:
        await self._handle_keys(data)
        for event in data.get("account_data", {}).get("events", []):
            self._seen.add(str(event["type"]).removeprefix("hayate."))
        rooms = data.get("rooms", {})
        for room, part in rooms.get("join", {}).items():
            await self._handle_room(room, part, since)
        for room, part in rooms.get("leave", {}).items():
            for raw in part.get("timeline", {}).get("events", []):
                self._note_member(room, raw)

    async def _handle_keys(self, data: dict[str, Any]) -> None:
        count = data.get("device_one_time_keys_count", {}).get("signed_curve25519", 0)
        await self.crypto.handle_otk_count(DeviceOTKCount(curve25519=0, signed_curve25519=count))
        changed = data.get("device_lists", {}).get("changed", [])
        if changed:
            before = await self._trust_of(changed)
            await self.crypto.handle_device_lists(DeviceLists(changed=changed, left=[]))
            after = await self._trust_of(changed)
            for user in changed:
                # mautrix shares a running session with new devices only; a device that became trusted would never get it.
                if before.get(user) != after.get(user):
                    await self._store.remove_outbound_group_sessions(await self._states.find_shared_rooms(user))
        for raw in data.get("to_device", {}).get("events", []):
            await self._handle_to_device(raw)
        for waiting in list(self.unread):
            one = await self._decrypt(waiting.raw)
            if isinstance(one, Read):
                self.unread.remove(waiting)
                self.read.append(one)
                self.late.append(one)

    async def _handle_to_device(self, raw: dict[str, Any]) -> None:
        if raw["type"] == "m.room.encrypted":
            try:
                await self.crypto.handle_to_device_event(ToDeviceEvent.deserialize(raw))
            except Exception as error:  # noqa: BLE001  what can't be read is told where a test fails
                self.refused.append(f"{raw['sender']}: {type(error).__name__}: {error}")
        elif raw["type"] in ("m.room_key.withheld", "org.matrix.room_key.withheld"):
            self.withheld.append(raw["content"])
        else:
            if raw["type"] == "m.room_key_request":
                with contextlib.suppress(Exception):
                    await self.crypto.handle_room_key_request(ToDeviceEvent.deserialize(raw))
            self.to_device.append(raw)

    async def _trust_of(self, users: list[str]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for user in users:
            devices = await self._store.get_devices(UserID(user)) or {}
            found[user] = {name: await self.crypto.resolve_trust(device, allow_fetch=False) for name, device in devices.items()}
        return found

    async def _handle_room(self, room: str, part: dict[str, Any], since: str | None) -> None:
        for raw in part.get("state", {}).get("events", []):
            await self._handle_state(room, raw)
        self._states.full_member_list[room] = True
        timeline = part.get("timeline", {})
        events = list(timeline.get("events", []))
        if timeline.get("limited") and room in self._known and since is not None:
            events = await self._fill(room, timeline["prev_batch"], since) + events
        for raw in events:
            if "state_key" in raw:
                await self._handle_state(room, raw)
            await self._handle_event(room, raw)
        for raw in part.get("ephemeral", {}).get("events", []):
            if raw["type"] == "m.typing":
                self.typing[room] = raw["content"]["user_ids"]
            elif raw["type"] == "m.receipt":
                self.receipts += [(room, event, user) for event, kinds in raw["content"].items() for user in kinds.get("m.read", {})]
        self._known.add(room)

    async def _fill(self, room: str, start: str, end: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        position: str | None = start
        while position is not None:
            query = {"dir": "b", "from": position, "to": end, "limit": "100"}
            page = await self.ask("GET", f"/_matrix/client/v3/rooms/{quote(room)}/messages", None, query)
            found += page.get("chunk", [])
            position = page.get("end") if page.get("chunk") else None
        return [raw for raw in reversed(found) if raw["event_id"] not in self._seen]

    def _note_member(self, room: str, raw: dict[str, Any]) -> None:
        if raw.get("type") == "m.room.member" and "state_key" in raw:
            self.members.setdefault(room, {})[raw["state_key"]] = raw["content"].get("membership", "leave")

    async def _handle_state(self, room: str, raw: dict[str, Any]) -> None:
        self._note_member(room, raw)
        if raw["type"] not in ("m.room.member", "m.room.encryption"):
            return
        event = StateEvent.deserialize({**raw, "room_id": room})
        await self.crypto.handle_member_event(event) if raw["type"] == "m.room.member" else None
        await self._states.update_state(event)

    async def _handle_event(self, room: str, raw: dict[str, Any]) -> None:
        if raw["event_id"] in self._seen:
            return
        self._seen.add(raw["event_id"])
        raw = {**raw, "room_id": room}
        if raw["type"] == "m.room.encrypted" and raw["content"].get("ciphertext"):
            one = await self._decrypt(raw)
            if isinstance(one, Read):
                self.read.append(one)
            else:
                self.unread.append(Unread(raw, one))
            return
        self.read.append(
            Read(raw["event_id"], room, raw["sender"], raw["type"], raw["content"], raw.get("origin_server_ts", 0), is_encrypted=False)
        )

    async def _decrypt(self, raw: dict[str, Any]) -> Read | str:
        try:
            event = EncryptedEvent.deserialize(raw)
            clear = await self.crypto.decrypt_megolm_event(event)
            payload = clear.serialize()
        except Exception as error:  # noqa: BLE001  whatever it is, the event could not be read
            return f"{type(error).__name__}: {error}"
        trust = clear["mautrix"]["trust_state"]
        return Read(
            raw["event_id"],
            raw["room_id"],
            raw["sender"],
            payload["type"],
            payload["content"],
            raw.get("origin_server_ts", 0),
            is_encrypted=True,
            trust=str(trust),
            is_trusted=trust >= TrustState.CROSS_SIGNED_UNTRUSTED,
            session_id=raw["content"]["session_id"],
            index=self._store.last_index,
        )
