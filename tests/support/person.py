"""A person in a room: mautrix-python on libolm in its strict mode, an implementation of the cryptography other than the bot's.

Promise: what a person says reaches only cross-signed devices, and every event is kept as it was read: decrypted with its trust, or undecryptable.
How: mautrix's crypto machine does keys and ciphertexts; the sync loop here hands it one response at a time, in order, so that nothing races.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote

import aiohttp

from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from hayate_matrix.demo.homeserver import Homeserver, Login

HAS_OLM = importlib.util.find_spec("olm") is not None and importlib.util.find_spec("mautrix") is not None
WHY_NO_OLM = "python-olm is not installed (it has wheels up to Python 3.12): the strict peer can't be run"

if HAS_OLM:
    from mautrix.client import Client
    from mautrix.client.state_store import MemoryStateStore
    from mautrix.crypto import OlmMachine
    from mautrix.crypto.cross_signing_key import CrossSigningSeeds
    from mautrix.crypto.store import MemoryCryptoStore
    from mautrix.types import EncryptedEvent, EventType, StateEvent, ToDeviceEvent, TrustState, UserID

POLL_S = 20
TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class Read:
    """One event as the person's client shows it."""

    event_id: str
    room_id: str
    sender: str
    type: str
    content: dict[str, Any]
    sent_at_ms: int
    is_encrypted: bool
    trust: str = ""
    """mautrix's word for the device that sent the key, such as `cross-signed-tofu`; empty for a clear event."""
    is_trusted: bool = False
    """Whether the sending device is cross-signed by its owner."""
    session_id: str = ""
    index: int = -1

    @property
    def body(self) -> str:
        """The plain text, the new one for an edit."""
        new = self.content.get("m.new_content")
        return str((new if isinstance(new, dict) else self.content).get("body", ""))

    @property
    def msgtype(self) -> str:
        """`m.text`, `m.notice` ..."""
        return str(self.content.get("msgtype", ""))

    @property
    def relation(self) -> dict[str, Any]:
        """The relation, as it stands in the content."""
        found = self.content.get("m.relates_to")
        return found if isinstance(found, dict) else {}

    @property
    def reply_to(self) -> str | None:
        """The event that it answers, the fallback of a thread included."""
        return (self.relation.get("m.in_reply_to") or {}).get("event_id")

    @property
    def thread(self) -> str | None:
        """The root of its thread."""
        return self.relation.get("event_id") if self.relation.get("rel_type") == "m.thread" else None

    @property
    def replaces(self) -> str | None:
        """The event that it edits."""
        return self.relation.get("event_id") if self.relation.get("rel_type") == "m.replace" else None


@dataclass(slots=True)
class Unread:
    """An event that could not be decrypted, and why."""

    raw: dict[str, Any]
    why: str

    @property
    def event_id(self) -> str:
        """Its id."""
        return str(self.raw["event_id"])


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
            return await super().validate_message_index(sender_key, session_id, event_id, index, timestamp)

    class _StateStore(MemoryStateStore):
        async def find_shared_rooms(self, user_id: Any) -> list[Any]:
            return [room for room, members in self.members.items() if user_id in members]


async def person(homeserver: Homeserver, name: str, *, url: str | None = None) -> Person:
    """Return somebody new, logged in, cross-signed and syncing; `url` goes through a proxy. Close it at the end."""
    name = f"{name}-{secrets.token_hex(3)}"
    password = secrets.token_hex(8)
    login = await asyncio.to_thread(homeserver.register, name, password)
    someone = Person(homeserver, login, password, url=url)
    await someone.open()
    return someone


@dataclass(eq=False)
class Person:
    """One device of somebody; made by `person`."""

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
                await self.crypto._publish_cross_signing_keys(self.seeds.to_keys())  # noqa: SLF001  its public way makes a recovery key too
            else:
                self.crypto._import_cross_signing_keys(self.seeds)  # noqa: SLF001
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

    async def second_device(self, *, cross_signed: bool = True) -> Person:
        """Return another device of the same account; unsigned where `cross_signed` is false."""
        name = self.user_id[1:].split(":")[0]
        login = await asyncio.to_thread(self.homeserver.login, name, self.password)
        other = Person(self.homeserver, login, self.password, url=self.url, seeds=self.seeds if cross_signed else None)
        await other.open(cross_signed=cross_signed)
        return other

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
            await self.crypto._publish_cross_signing_keys(self.seeds.to_keys())  # noqa: SLF001
        except Exception as error:  # noqa: BLE001  mautrix has no class for the interactive step
            session = getattr(error, "body", None) or {}
            if isinstance(session, dict) and "session" in session:
                auth["session"] = session["session"]
            await self.crypto._publish_cross_signing_keys(self.seeds.to_keys(), auth=auth)  # noqa: SLF001
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
        assert status == 200, f"{method} {path} was answered {status}: {answer}"  # noqa: PLR2004
        return answer

    # --- rooms

    async def create_room(
        self,
        *,
        encrypted: bool = True,
        invite: Iterable[str] = (),
        direct: bool = False,
        name: str | None = None,
        version: str | None = None,
        encryption: dict[str, Any] | None = None,
        state: Iterable[dict[str, Any]] = (),
        **more: Any,
    ) -> str:
        """Make a room and return its id; `encryption` adds to the encryption event (rotation), `state` adds events, `more` goes as it is."""
        invite = list(invite)
        first: list[dict[str, Any]] = list(state)
        if encrypted:
            content = {"algorithm": "m.megolm.v1.aes-sha2", **(encryption or {})}
            first.append({"type": "m.room.encryption", "state_key": "", "content": content})
        body: dict[str, Any] = {
            "preset": "trusted_private_chat" if direct else "private_chat",
            "is_direct": direct,
            "invite": invite,
            "initial_state": first,
            **more,
        }
        if name is not None:
            body["name"] = name
        if version is not None:
            body["room_version"] = version
        room = str((await self.ask("POST", "/_matrix/client/v3/createRoom", body))["room_id"])
        if direct:
            await self.ask("PUT", f"/_matrix/client/v3/user/{quote(self.user_id)}/account_data/m.direct", {i: [room] for i in invite})
        await eventually(
            lambda: self._alive() and room in self._known and set(invite) <= self.members.get(room, {}).keys(),
            what=f"{self.user_id} sees the new room {room}",
        )
        return room

    async def direct_message(self, user_id: str, *, encrypted: bool = True) -> str:
        """Make a direct message with `user_id` and return its room id."""
        return await self.create_room(encrypted=encrypted, invite=[user_id], direct=True)

    async def invite(self, room: str, user_id: str) -> None:
        """Ask somebody in."""
        await self.ask("POST", f"/_matrix/client/v3/rooms/{quote(room)}/invite", {"user_id": user_id})

    async def join(self, room: str) -> None:
        """Join, and return when the room was seen."""
        await self.ask("POST", f"/_matrix/client/v3/join/{quote(room)}", {})
        await eventually(lambda: self._alive() and room in self._known, what=f"{self.user_id} sees {room} joined")

    async def leave(self, room: str) -> None:
        """Leave."""
        await self.ask("POST", f"/_matrix/client/v3/rooms/{quote(room)}/leave", {})

    async def kick(self, room: str, user_id: str) -> None:
        """Throw somebody out."""
        await self.ask("POST", f"/_matrix/client/v3/rooms/{quote(room)}/kick", {"user_id": user_id})

    async def ban(self, room: str, user_id: str) -> None:
        """Ban somebody."""
        await self.ask("POST", f"/_matrix/client/v3/rooms/{quote(room)}/ban", {"user_id": user_id})

    async def unban(self, room: str, user_id: str) -> None:
        """End a ban."""
        await self.ask("POST", f"/_matrix/client/v3/rooms/{quote(room)}/unban", {"user_id": user_id})

    async def put_state(self, room: str, kind: str, content: dict[str, Any], state_key: str = "") -> str:
        """Set a state event and return its id."""
        path = f"/_matrix/client/v3/rooms/{quote(room)}/state/{kind}/{quote(state_key)}"
        return str((await self.ask("PUT", path, content))["event_id"])

    async def sees_member(self, room: str, user_id: str, membership: str = "join", *, timeout_s: float = TIMEOUT_S) -> None:
        """Return when `user_id` has that membership in `room`."""
        await eventually(
            lambda: self._alive() and self.members.get(room, {}).get(user_id) == membership,
            timeout_s=timeout_s,
            what=lambda: f"{user_id} is {membership} in {room}; it is {self.members.get(room, {}).get(user_id)}",
        )

    # --- speaking

    async def say(self, room: str, text: str, *, mention: str | None = None, **more: Any) -> str:
        """Say `text` and return the event id; `mention` names the bot in `m.mentions`, `more` lies over the content."""
        content: dict[str, Any] = {"msgtype": "m.text", "body": text, "m.mentions": {"user_ids": [mention]} if mention else {}}
        return await self.send(room, "m.room.message", {**content, **more})

    async def reply(self, room: str, to: str, text: str, **more: Any) -> str:
        """Answer an event."""
        return await self.say(room, text, **{"m.relates_to": {"m.in_reply_to": {"event_id": to}}}, **more)

    async def say_in_thread(self, room: str, root: str, text: str, **more: Any) -> str:
        """Say something in the thread under `root`."""
        relation = {"rel_type": "m.thread", "event_id": root, "is_falling_back": True, "m.in_reply_to": {"event_id": root}}
        return await self.say(room, text, **{"m.relates_to": relation}, **more)

    async def edit(self, room: str, event_id: str, text: str, *, mention: str | None = None) -> str:
        """Replace the text of an own message."""
        new = {"msgtype": "m.text", "body": text, "m.mentions": {"user_ids": [mention]} if mention else {}}
        relation = {"rel_type": "m.replace", "event_id": event_id}
        return await self.send(room, "m.room.message", {**new, "body": f"* {text}", "m.new_content": new, "m.relates_to": relation})

    async def react(self, room: str, event_id: str, key: str) -> str:
        """Annotate an event; reactions travel in clear."""
        relation = {"rel_type": "m.annotation", "event_id": event_id, "key": key}
        return await self.send_clear(room, "m.reaction", {"m.relates_to": relation})

    async def redact(self, room: str, event_id: str) -> str:
        """Remove an event."""
        path = f"/_matrix/client/v3/rooms/{quote(room)}/redact/{quote(event_id)}/{secrets.token_hex(8)}"
        return str((await self.ask("PUT", path, {}))["event_id"])

    async def send(self, room: str, kind: str, content: dict[str, Any]) -> str:
        """Send any event, encrypted where the room is, and return its id; encrypted `kind`s that no honest client sends work too."""
        if await self._states.is_encrypted(room):
            return await self.send_clear(room, "m.room.encrypted", await self.encrypt(room, kind, content))
        return await self.send_clear(room, kind, content)

    async def encrypt(self, room: str, kind: str, content: dict[str, Any]) -> dict[str, Any]:
        """Return the content of the `m.room.encrypted` event, its key shared with whom strictness allows."""
        async with self._crypto_lock:
            sealed = await self.client.encrypt(room, EventType.find(kind), content)
        plain: dict[str, Any] = sealed.serialize()
        if "m.relates_to" in content:
            plain["m.relates_to"] = content["m.relates_to"]
        return plain

    async def send_clear(self, room: str, kind: str, content: dict[str, Any]) -> str:
        """Send an event as it stands."""
        path = f"/_matrix/client/v3/rooms/{quote(room)}/send/{kind}/{secrets.token_hex(8)}"
        return str((await self.ask("PUT", path, content))["event_id"])

    async def forget_room_key(self, room: str) -> None:
        """Use a new room key from the next message on."""
        await self._store.remove_outbound_group_session(room)

    # --- reading

    def messages(self, room: str, *, sender: str | None = None, msgtype: str | None = None) -> list[Read]:
        """The messages of `room` that were read, edits included, own ones left out unless `sender` names this person."""
        return [
            one
            for one in self.read
            if one.room_id == room
            and one.type == "m.room.message"
            and (one.sender == sender if sender else one.sender != self.user_id)
            and (msgtype is None or one.msgtype == msgtype)
        ]

    def answers(self, event_id: str) -> list[Read]:
        """The messages by others that answer `event_id`, edits left out."""
        return [
            one
            for one in self.read
            if one.type == "m.room.message" and one.reply_to == event_id and one.sender != self.user_id and one.replaces is None
        ]

    async def reads(self, room: str, n: int = 1, *, sender: str | None = None, timeout_s: float = TIMEOUT_S) -> list[Read]:
        """Return the messages by others in `room` once there are `n`."""
        return await eventually(
            lambda: self._alive() and (self.messages(room, sender=sender) if len(self.messages(room, sender=sender)) >= n else None),
            timeout_s=timeout_s,
            what=lambda: f"{n} messages in {room}; {self.describe(room)}",
        )

    async def sees(self, room: str, text: str, *, sender: str | None = None, timeout_s: float = TIMEOUT_S) -> Read:
        """Return the first message by somebody else in `room` that holds `text`."""
        return await eventually(
            lambda: self._alive() and next((one for one in self.messages(room, sender=sender) if text in one.body), None),
            timeout_s=timeout_s,
            what=lambda: f"a message with {text!r} in {room}; {self.describe(room)}",
        )

    async def is_answered(self, event_id: str, *, timeout_s: float = TIMEOUT_S) -> Read:
        """Return the first answer to `event_id`."""
        return await eventually(
            lambda: self._alive() and next(iter(self.answers(event_id)), None),
            timeout_s=timeout_s,
            what=lambda: f"an answer to {event_id}; {self.describe()}",
        )

    async def finds(self, look: Callable[[], Any], *, what: str = "", timeout_s: float = TIMEOUT_S) -> Any:
        """Return what `look` gives once it is true, failing at once where syncing failed."""
        return await eventually(lambda: self._alive() and look(), timeout_s=timeout_s, what=lambda: f"{what}; {self.describe()}")

    async def catches_up(self) -> None:
        """Return when a sync that began after this call was handled: everything in the room before it has been read."""
        marker = f"mark-{secrets.token_hex(6)}"
        await self.ask("PUT", f"/_matrix/client/v3/user/{quote(self.user_id)}/account_data/hayate.{marker}", {})
        await eventually(lambda: self._alive() and marker in self._seen, timeout_s=TIMEOUT_S, what="the own mark in account data")

    def describe(self, room: str | None = None) -> str:
        """Return what was read and what was not, for the text of a failure."""
        shown = [f"{one.sender} {one.type} {one.body!r}" for one in self.read if room in (None, one.room_id) and one.type != "m.room.member"]
        return f"read {shown[-15:]}, unread {[(u.event_id, u.why) for u in self.unread[:5]]}, withheld {self.withheld[:3]}, refused {self.refused[:3]}"

    def check_strictly(self, room: str | None = None) -> None:
        """Fail where anything of others was unreadable, in clear in an encrypted room, by an unsigned device, or under a used index."""
        assert not self.unread, f"undecryptable: {[(one.event_id, one.why) for one in self.unread[:5]]}"
        used: dict[tuple[str, int], str] = {}
        for one in self.read:
            if one.sender == self.user_id or (room is not None and one.room_id != room):
                continue
            if one.is_encrypted:
                assert one.is_trusted, f"{one.event_id} came from a device that is {one.trust}"
                first = used.setdefault((one.session_id, one.index), one.event_id)
                assert first == one.event_id, f"index {one.index} of {one.session_id} was used for {first} and {one.event_id}"
            elif one.type == "m.room.message":
                assert one.room_id not in self._encrypted, f"{one.event_id} is in clear in an encrypted room"

    @property
    def _encrypted(self) -> set[str]:
        return {room for room, info in self._states.encryption.items() if info is not None}

    # --- syncing

    def _alive(self) -> bool:
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
        if status != 200:  # noqa: PLR2004
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
        from mautrix.types import DeviceLists, DeviceOTKCount  # noqa: PLC0415  only there with python-olm

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
        for waiting in list(self.unread):
            one = await self._decrypt(waiting.raw)
            if isinstance(one, Read):
                self.unread.remove(waiting)
                self.read.append(one)
                self.late.append(one)

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
