"""A homeserver made of Python objects, for what a real one can't be made to do.

    async with FabricatedHomeserver() as server:
        bot = server.login("@bot:fab.test")
        alice = server.user("@alice:fab.test")
        room = server.room("!r:fab.test", members=[bot.user_id, alice.user_id], encrypted=True)
        room.says(alice, "hello")            # encrypted where the room is; the key goes to the devices of the bot
        server.answers("PUT", "*/send/*", {"errcode": "M_UNKNOWN"}, status=500, times=2)
        server.adds_to_sync({"to_device": {"events": [{"type": None}]}})

Sync, gaps and pages follow the specification: a position is a number in one stream, a timeline longer than the filter's limit is
`limited`, and `/messages` walks back to where it was cut. What is scripted comes first, what is left is answered by this small model.
"""

from __future__ import annotations

import asyncio
import copy
import fnmatch
import json
import secrets
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from aiohttp import web

from hayate_matrix.demo.homeserver import Login
from tests.support.fabricated.devices import MEGOLM, FabricatedDevice, FabricatedUser
from tests.support.identity import Identity

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

JSON = dict[str, Any]
STARTED_MS = 1_800_000_000_000
TIMELINE_LIMIT = 20


def is_limited_by(page: list[Any], limit: int) -> bool:
    """Return whether `page` is longer than `limit`."""
    return len(page) > limit


@dataclass
class FabricatedRoom:
    """A room: state, and a timeline of events with their places in the stream."""

    server: FabricatedHomeserver
    room_id: str
    state: dict[tuple[str, str], JSON] = field(default_factory=dict)
    timeline: list[tuple[int, JSON]] = field(default_factory=list)
    joined_at: dict[str, int] = field(default_factory=dict)
    invited: dict[str, int] = field(default_factory=dict)
    left_at: dict[str, int] = field(default_factory=dict)

    @property
    def is_encrypted(self) -> bool:
        """Whether it has an encryption event."""
        return ("m.room.encryption", "") in self.state

    @property
    def members(self) -> list[str]:
        """Who is in."""
        return [key for (kind, key), event in self.state.items() if kind == "m.room.member" and event["content"]["membership"] == "join"]

    def says(self, who: FabricatedUser | str, body: str, *, device: FabricatedDevice | None = None, **more: Any) -> JSON:
        """Add a message and return its event; in an encrypted room by a fabricated user it is encrypted and the key shared first."""
        content: JSON = {"msgtype": "m.text", "body": body, **more}
        if isinstance(who, str) or not self.is_encrypted:
            return self.has(who if isinstance(who, str) else who.user_id, "m.room.message", content)
        device = device or who.device
        self.shares_key(device)
        return self.has(who.user_id, "m.room.encrypted", device.encrypt(self.room_id, content))

    def shares_key(self, device: FabricatedDevice) -> None:
        """Share the room key of `device` with the logged-in devices in the room that don't have it yet."""
        device.room_key(self.room_id)
        session = device.room_keys[self.room_id].session_id
        for login in self.server.logins.values():
            target = (session, login.user_id, login.device_id)
            keys = self.server.device_keys.get(login.user_id, {}).get(login.device_id)
            if keys is not None and target not in self.server.shared and login.user_id in self.members:
                self.server.shared.add(target)
                device.shares_room_key(self.room_id, login.user_id, login.device_id)

    def has(self, sender: str, kind: str, content: JSON, *, state_key: str | None = None, **more: Any) -> JSON:
        """Add any event and return it; `more` lies over its fields, `event_id=None` leaves a field out."""
        server = self.server
        position = server.advances()
        event: JSON = {
            "type": kind,
            "sender": sender,
            "content": content,
            "event_id": f"$e{position}{secrets.token_hex(4)}",
            "origin_server_ts": STARTED_MS + position,
            "unsigned": {},
        }
        if state_key is not None:
            event["state_key"] = state_key
        event.update(more)
        event = {key: value for key, value in event.items() if value is not None or key == "content"}
        if state_key is not None and isinstance(content, dict):
            self._takes_state(event, position)
        self.timeline.append((position, event))
        server.wakes()
        return event

    def _takes_state(self, event: JSON, position: int) -> None:
        kind, key = event["type"], event["state_key"]
        previous = self.state.get((kind, key))
        if previous is not None:
            event["unsigned"] = {**event.get("unsigned", {}), "prev_content": previous["content"], "replaces_state": previous["event_id"]}
        self.state[kind, key] = event
        if kind != "m.room.member":
            return
        membership = event["content"].get("membership")
        for places in (self.joined_at, self.invited, self.left_at):
            places.pop(key, None)
        {"join": self.joined_at, "invite": self.invited}.get(membership, self.left_at)[key] = position
        if membership == "join":
            self.server.marks_changed(key)

    def member(self, user_id: str, membership: str = "join", *, sender: str | None = None, **more: Any) -> JSON:
        """Change the membership of somebody."""
        return self.has(sender or user_id, "m.room.member", {"membership": membership, **more}, state_key=user_id)

    def page_back(self, before: int, after: int, limit: int) -> tuple[list[JSON], int | None]:
        """Return events between two places, newest first, and where the next page goes on."""
        found = [(place, event) for place, event in self.timeline if after < place < before]
        page = found[-limit:][::-1]
        more = len(found) > len(page)
        return [event for _, event in page], page[-1][0] if page and more else None


@dataclass
class Answer:
    """A scripted answer; `end()` it, or it ends after `times` requests."""

    method: str
    path: str
    reply: Callable[[web.Request, Any], Any]
    left: int | None
    hits: int = 0

    def end(self) -> None:
        """Answer by the model again."""
        self.left = 0


@dataclass(frozen=True, slots=True)
class Asked:
    """One request that came."""

    at: float
    method: str
    path: str
    query: dict[str, str]
    body: Any
    user_id: str | None


class FabricatedHomeserver:
    """See the module; everything runs in the loop of the test."""

    def __init__(self, name: str = "fab.test") -> None:
        self.name = name
        self.url = ""
        self.position = 0
        self.rooms: dict[str, FabricatedRoom] = {}
        self.logins: dict[str, Login] = {}
        """By access token."""
        self.passwords: dict[str, str] = {}
        self.asked: list[Asked] = []
        self.sent: list[JSON] = []
        """Events that clients sent to rooms, each once a transaction id."""
        self.device_keys: dict[str, dict[str, JSON]] = {}
        self.cross_signing: dict[str, JSON] = {}
        self.one_time_keys: dict[tuple[str, str], dict[str, JSON]] = {}
        self.fallback_keys: dict[tuple[str, str], dict[str, JSON]] = {}
        self.used_fallbacks: set[tuple[str, str]] = set()
        self.account_data: dict[str, dict[str, JSON]] = {}
        self.filters: list[JSON] = []
        self.shared: set[tuple[str, str, str]] = set()
        self.published: dict[tuple[str, str], FabricatedDevice] = {}
        self.sync_answers: list[JSON] = []
        """What /sync gave, newest last; only the last few."""
        self.answers_made: list[Answer] = []
        self.to_device: dict[tuple[str, str], list[tuple[int, JSON]]] = {}
        self.outgoing_to_device: list[JSON] = []
        """Bodies of sendToDevice requests with their type, each once a transaction id."""
        self.changed: list[tuple[int, str]] = []
        self.raw_parts: list[tuple[int, JSON]] = []
        self.transactions: dict[tuple[str, str], JSON] = {}
        self._news = asyncio.Event()
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> Self:
        """Listen on a free loopback port."""
        from tests.support.fabricated.routes import make_application  # noqa: PLC0415  the routes know this class

        self._runner = web.AppRunner(make_application(self), access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop listening."""
        if self._runner is not None:
            await self._runner.cleanup()

    # --- what is there

    def login(self, user_id: str, device_id: str = "BOTDEVICE", *, password: str = "pw") -> Login:  # noqa: S107  made up
        """Make an account with a device that is logged in; its keys are what it uploads."""
        made = Login(user_id, device_id, f"token-{secrets.token_hex(6)}")
        self.logins[made.access_token] = made
        self.passwords[user_id] = password
        return made

    def user(self, user_id: str, *, devices: int = 1, cross_signed: bool = True, identity: bool = True) -> FabricatedUser:
        """Make somebody with published device keys; `cross_signed=False` leaves the devices unsigned."""
        made = FabricatedUser(self, user_id, Identity(user_id) if identity else None)
        if made.identity is not None:
            self.cross_signing[user_id] = made.identity.published()
        for number in range(devices):
            made.adds_device(f"DEVICE{number}", cross_signed=cross_signed and identity)
        return made

    def room(
        self,
        room_id: str,
        *,
        members: Iterable[str],
        encrypted: bool = False,
        creator: str | None = None,
        version: str = "11",
        name: str | None = None,
        encryption: JSON | None = None,
    ) -> FabricatedRoom:
        """Make a room with its state events; the first member made it unless `creator` is given."""
        room = self.rooms[room_id] = FabricatedRoom(self, room_id)
        people = list(members)
        first = creator or people[0]
        room.has(first, "m.room.create", {"room_version": version, "creator": first}, state_key="")
        for user_id in people:
            room.member(user_id, displayname=user_id[1:].split(":")[0])
        levels = {} if int(version) >= 12 else {first: 100}
        room.has(first, "m.room.power_levels", {"users": levels, "users_default": 0, "events": {}, "state_default": 50}, state_key="")
        room.has(first, "m.room.join_rules", {"join_rule": "invite"}, state_key="")
        room.has(first, "m.room.history_visibility", {"history_visibility": "shared"}, state_key="")
        if name is not None:
            room.has(first, "m.room.name", {"name": name}, state_key="")
        if encrypted:
            room.has(first, "m.room.encryption", {"algorithm": MEGOLM, **(encryption or {})}, state_key="")
        return room

    def invites(self, user_id: str, room_id: str, *, sender: str, is_direct: bool = False, encrypted: bool = True) -> FabricatedRoom:
        """Make a room of `sender` into which `user_id` is invited."""
        room = self.room(room_id, members=[sender], encrypted=encrypted)
        more = {"is_direct": True} if is_direct else {}
        room.member(user_id, "invite", sender=sender, **more)
        return room

    # --- scripting

    def answers(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        status: int = 200,
        headers: dict[str, str] | None = None,
        times: int | None = None,
    ) -> Answer:
        """Answer matching requests with `body` (JSON, or a string or bytes as they are), `times` times or until `end()`."""

        def reply(_request: web.Request, _body: Any) -> web.Response:
            if isinstance(body, bytes | str):
                data = body.encode() if isinstance(body, str) else body
                return web.Response(status=status, body=data, headers={"Content-Type": "text/html", **(headers or {})})
            return web.json_response(body if body is not None else {}, status=status, headers=headers)

        return self.handles(method, path, reply, times=times)

    def handles(self, method: str, path: str, reply: Callable[[web.Request, Any], Any], *, times: int | None = None) -> Answer:
        """Let `reply(request, body)` answer: a response, a coroutine for one, or None to let the model answer."""
        made = Answer(method, path, reply, times)
        self.answers_made.insert(0, made)
        return made

    def find_answer(self, method: str, path: str) -> Answer | None:
        """Return the scripted answer for a request, counting it."""
        for one in self.answers_made:
            if one.left != 0 and one.method in ("*", method) and fnmatch.fnmatchcase(path, one.path):
                one.hits += 1
                if one.left is not None:
                    one.left -= 1
                return one
        return None

    def adds_to_sync(self, part: JSON) -> None:
        """Lay `part` over the sync answer that passes this moment: lists are appended, dictionaries merged, whatever their shape."""
        self.raw_parts.append((self.advances(), part))
        self.wakes()

    def rolls_back(self, to: int) -> None:
        """Forget everything after the place `to`, as a homeserver does that was restored from a backup; ids of events go on from there."""
        self.position = to
        for room in self.rooms.values():
            room.timeline = [(place, event) for place, event in room.timeline if place <= to]
        self.wakes()

    def sends_to_device(self, user_id: str, device_id: str, event: JSON) -> None:
        """Put a to-device event where the device's next sync takes it."""
        self.to_device.setdefault((user_id, device_id), []).append((self.advances(), event))
        self.wakes()

    def take_to_device(self, user_id: str, device_id: str) -> list[JSON]:
        """Return and remove what waits for a device of a fabricated user."""
        return [event for _, event in self.to_device.pop((user_id, device_id), [])]

    def publishes(self, device: FabricatedDevice, keys: JSON | None = None) -> None:
        """Publish the keys of a device, `keys` being what a liar publishes."""
        self.device_keys.setdefault(device.user_id, {})[device.device_id] = keys if keys is not None else device.device_keys()
        self.published[device.user_id, device.device_id] = device
        self.marks_changed(device.user_id)

    def claim(self, user_id: str, device_id: str) -> dict[str, JSON] | None:
        """Take a one-time key, or the fallback key, of a device."""
        device = self.published.get((user_id, device_id))
        if device is not None:
            name, key = device.one_time_key()
            return {name: key}
        keys = self.one_time_keys.get((user_id, device_id), {})
        if keys:
            name = next(iter(keys))
            self.wakes()
            return {name: keys.pop(name)}
        fallback = self.fallback_keys.get((user_id, device_id))
        if fallback:
            self.used_fallbacks.add((user_id, device_id))
            self.wakes()
        return dict(fallback) if fallback else None

    def marks_changed(self, user_id: str) -> None:
        """Tell in the next sync that the devices of `user_id` changed."""
        self.changed.append((self.advances(), user_id))
        self.wakes()

    def advances(self) -> int:
        """Return the next place in the stream."""
        self.position += 1
        return self.position

    def wakes(self) -> None:
        """Let waiting syncs look again."""
        self._news.set()

    # --- what was asked

    def requests(self, method: str = "*", path: str = "*") -> list[Asked]:
        """Return the requests that match."""
        return [one for one in self.asked if method in ("*", one.method) and fnmatch.fnmatchcase(one.path, path)]

    def note(self, request: web.Request, body: Any, user_id: str | None) -> None:
        """Record a request."""
        self.asked.append(Asked(time.monotonic(), request.method, request.path, dict(request.query), body, user_id))

    # --- sync

    async def sync(self, login: Login, query: dict[str, str]) -> JSON:
        """Return the answer to one /sync, waiting for news as long as the client says."""
        since = int(query["since"][1:]) if "since" in query else None
        wanted = self._filter(query.get("filter"))
        full = query.get("full_state") == "true"
        deadline = asyncio.get_running_loop().time() + int(query.get("timeout", "0")) / 1000
        queue = self.to_device.get((login.user_id, login.device_id), [])
        queue[:] = [(place, event) for place, event in queue if since is None or place > since]
        while True:
            self._news.clear()
            answer, has_news = self._sync_now(login, since, wanted, full=full)
            left = deadline - asyncio.get_running_loop().time()
            if has_news or since is None or full or left <= 0:
                self.sync_answers = [*self.sync_answers[-4:], answer]
                return answer
            try:
                await asyncio.wait_for(self._news.wait(), left)
            except TimeoutError:
                continue

    def _filter(self, text: str | None) -> JSON:
        if not text:
            return {}
        found: JSON = json.loads(text) if text.startswith("{") else self.filters[int(text)]
        return found

    def _sync_now(self, login: Login, since: int | None, wanted: JSON, *, full: bool) -> tuple[JSON, bool]:
        after = since or 0
        rooms: JSON = {"join": {}, "invite": {}, "leave": {}}
        for room in self.rooms.values():
            self._sync_room(room, login.user_id, since, wanted, rooms, full=full)
        events = [event for place, event in self.to_device.get((login.user_id, login.device_id), []) if place > after][:100]
        news = {user for place, user in self.changed if place > after} if since is not None else set()
        rooms_of = [room.joined_at for room in self.rooms.values() if login.user_id in room.joined_at] if news else []
        changed = sorted(user for user in news if user == login.user_id or any(user in joined for joined in rooms_of))
        key = (login.user_id, login.device_id)
        answer: JSON = {
            "next_batch": f"s{self.position}",
            "rooms": {kind: found for kind, found in rooms.items() if found},
            "to_device": {"events": events},
            "device_lists": {"changed": changed, "left": []},
            "device_one_time_keys_count": {"signed_curve25519": len(self.one_time_keys.get(key, {}))},
            "device_unused_fallback_key_types": ["signed_curve25519"] if key in self.fallback_keys.keys() - self.used_fallbacks else [],
        }
        own = self.account_data.get(login.user_id, {})
        if since is None and own:
            answer["account_data"] = {"events": [{"type": kind, "content": content} for kind, content in own.items()]}
        parts = [part for place, part in self.raw_parts if place > after]
        for part in parts:
            answer = _lay_over(answer, part)
        return answer, bool(events or changed or parts or any(rooms.values()))

    def _sync_room(self, room: FabricatedRoom, user_id: str, since: int | None, wanted: JSON, rooms: JSON, *, full: bool) -> None:
        after = since or 0
        if user_id in room.invited and (room.invited[user_id] > after or full):
            kept = {"m.room.create", "m.room.encryption", "m.room.join_rules", "m.room.name"}
            stripped = [event for (kind, key), event in room.state.items() if kind in kept or (kind == "m.room.member" and key == user_id)]
            fields = ("type", "sender", "content", "state_key")
            rooms["invite"][room.room_id] = {"invite_state": {"events": [{name: one[name] for name in fields} for one in stripped]}}
        elif user_id in room.left_at and room.left_at[user_id] > after and since is not None:
            events = [event for place, event in room.timeline if after < place <= room.left_at[user_id]]
            rooms["leave"][room.room_id] = {
                "timeline": {"events": events, "limited": False, "prev_batch": f"t{after}"},
                "state": {"events": []},
            }
        elif user_id in room.joined_at:
            is_new = since is None or room.joined_at[user_id] > after
            limit = int(wanted.get("room", {}).get("timeline", {}).get("limit", TIMELINE_LIMIT))
            start = 0 if is_new else after
            # Walk back only as far as the limit needs: rooms are many and long.
            found: list[tuple[int, JSON]] = []
            for place, event in reversed(room.timeline):
                if place <= start or is_limited_by(found, limit):
                    break
                found.append((place, event))
            if not found and not full and not is_new:
                return
            limited = len(found) > limit
            shown = found[:limit][::-1]
            first = shown[0][0] if shown else self.position + 1
            rooms["join"][room.room_id] = {
                "timeline": {"events": [event for _, event in shown], "limited": limited, "prev_batch": f"t{first}"},
                "state": {"events": self._state_before(room, first, start, wanted, shown, full=full or is_new)},
                "ephemeral": {"events": []},
                "account_data": {"events": []},
                "summary": {"m.joined_member_count": len(room.joined_at), "m.invited_member_count": len(room.invited)},
                "unread_notifications": {"notification_count": 0, "highlight_count": 0},
            }

    @staticmethod
    def _state_before(
        room: FabricatedRoom, first: int, start: int, wanted: JSON, shown: list[tuple[int, JSON]], *, full: bool
    ) -> list[JSON]:
        in_timeline = {id(event) for _, event in shown}
        lazy = wanted.get("room", {}).get("state", {}).get("lazy_load_members")
        speakers = {event.get("sender") for _, event in shown}
        newer: set[int] = set()
        if not full:
            for place, event in reversed(room.timeline):
                if place <= start:
                    break
                if place < first:
                    newer.add(id(event))
            if not newer:
                return []
        found = []
        for (kind, key), event in room.state.items():
            if id(event) in in_timeline or not (full or id(event) in newer):
                continue
            if lazy and kind == "m.room.member" and key not in speakers:
                continue
            found.append(event)
        return found


def _lay_over(answer: Any, part: Any) -> Any:
    if isinstance(answer, dict) and isinstance(part, dict):
        merged = dict(answer)
        for key, value in part.items():
            merged[key] = _lay_over(merged[key], value) if key in merged else copy.deepcopy(value)
        return merged
    if isinstance(answer, list) and isinstance(part, list):
        return [*answer, *part]
    return part
