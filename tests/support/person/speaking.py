"""A person in a room: mautrix-python on libolm in its strict mode, an implementation of the cryptography other than the bot's.

Promise: what a person says reaches only cross-signed devices, and every event is kept as it was read: decrypted with its trust, or not.
"""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from tests.support.person.syncing import HAS_OLM, TIMEOUT_S, Syncing
from tests.support.waiting import eventually

if HAS_OLM:
    from mautrix.types import EventType

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from hayate_matrix.demo.homeserver import Homeserver
    from tests.support.person.read import Read


async def person(homeserver: Homeserver, name: str, *, url: str | None = None) -> Person:
    """Return somebody new, logged in, cross-signed and syncing; `url` goes through a proxy. Close it at the end."""
    name = f"{name}-{secrets.token_hex(3)}"
    password = secrets.token_hex(8)
    login = await asyncio.to_thread(homeserver.register, name, password)
    someone = Person(homeserver, login, password, url=url)
    await someone.open()
    return someone


class Person(Syncing):
    """One device of somebody; made by `person`."""

    async def second_device(self, *, cross_signed: bool = True) -> Person:
        """Return another device of the same account; unsigned where `cross_signed` is false."""
        name = self.user_id[1:].split(":")[0]
        login = await asyncio.to_thread(self.homeserver.login, name, self.password)
        other = Person(self.homeserver, login, self.password, url=self.url, seeds=self.seeds if cross_signed else None)
        await other.open(cross_signed=cross_signed)
        return other

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
        """Make a room and return its id; `encryption` adds to its event (rotation), `state` adds events, `more` goes as it is."""
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
            lambda: self.is_alive() and room in self._known and set(invite) <= self.members.get(room, {}).keys(),
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
        await eventually(lambda: self.is_alive() and room in self._known, what=f"{self.user_id} sees {room} joined")

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
            lambda: self.is_alive() and self.members.get(room, {}).get(user_id) == membership,
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
        more["m.relates_to"] = {"m.in_reply_to": {"event_id": to}}
        return await self.say(room, text, **more)

    async def say_in_thread(self, room: str, root: str, text: str, **more: Any) -> str:
        """Say something in the thread under `root`."""
        fallback = {"is_falling_back": True, "m.in_reply_to": {"event_id": root}}
        more["m.relates_to"] = {"rel_type": "m.thread", "event_id": root, **fallback}
        return await self.say(room, text, **more)

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

    async def say_before_key(self, room: str, text: str) -> tuple[str, Callable[[str], Awaitable[None]]]:
        """Say something under a room key that nobody else was given, and return its id and what hands the key to a user's devices."""
        await self.forget_room_key(room)
        async with self._crypto_lock:
            await self.crypto.share_group_session(room, [self.user_id])
            session = await self._store.get_outbound_group_session(room)
            key = session.share_content
        event = await self.say(room, text)
        await self.forget_room_key(room)

        async def hand_to(user_id: str) -> None:
            async with self._crypto_lock:
                for device in (await self.crypto._fetch_keys([user_id], include_untracked=True))[user_id].values():
                    await self.crypto.send_encrypted_to_device(device, EventType.ROOM_KEY, key)

        return event, hand_to

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

        def look() -> list[Read] | None:
            found = self.messages(room, sender=sender)
            return found if self.is_alive() and len(found) >= n else None

        return await eventually(
            look,
            timeout_s=timeout_s,
            what=lambda: f"{n} messages in {room}; {self.describe(room)}",
        )

    async def sees(self, room: str, text: str, *, sender: str | None = None, timeout_s: float = TIMEOUT_S) -> Read:
        """Return the first message by somebody else in `room` that holds `text`."""
        return await eventually(
            lambda: self.is_alive() and next((one for one in self.messages(room, sender=sender) if text in one.body), None),
            timeout_s=timeout_s,
            what=lambda: f"a message with {text!r} in {room}; {self.describe(room)}",
        )

    async def is_answered(self, event_id: str, *, timeout_s: float = TIMEOUT_S) -> Read:
        """Return the first answer to `event_id`."""
        return await eventually(
            lambda: self.is_alive() and next(iter(self.answers(event_id)), None),
            timeout_s=timeout_s,
            what=lambda: f"an answer to {event_id}; {self.describe()}",
        )

    async def finds(self, look: Callable[[], Any], *, what: str = "", timeout_s: float = TIMEOUT_S) -> Any:
        """Return what `look` gives once it is true, failing at once where syncing failed."""
        return await eventually(lambda: self.is_alive() and look(), timeout_s=timeout_s, what=lambda: f"{what}; {self.describe()}")

    async def catches_up(self) -> None:
        """Return when a sync that began after this call was handled: everything in the room before it has been read."""
        marker = f"mark-{secrets.token_hex(6)}"
        await self.ask("PUT", f"/_matrix/client/v3/user/{quote(self.user_id)}/account_data/hayate.{marker}", {})
        await eventually(lambda: self.is_alive() and marker in self._seen, timeout_s=TIMEOUT_S, what="the own mark in account data")

    def describe(self, room: str | None = None) -> str:
        """Return what was read and what was not, for the text of a failure."""
        heard = [one for one in self.read if room in (None, one.room_id) and one.type != "m.room.member"]
        shown = [f"{one.sender} {one.type} {one.body!r}" for one in heard[-15:]]
        unread = [(one.event_id, one.why) for one in self.unread[:5]]
        return f"read {shown}, unread {unread}, withheld {self.withheld[:3]}, refused {self.refused[:3]}"

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

    def check_strictly_but_for(self, user_id: str) -> None:
        """Like `check_strictly`, but what `user_id` sent may be anything."""
        kept = [one for one in self.unread if one.raw["sender"] != user_id]
        assert not kept, f"undecryptable: {[(one.event_id, one.why) for one in kept[:5]]}"
        for one in self.read:
            if one.sender not in (user_id, self.user_id) and one.is_encrypted:
                assert one.is_trusted, f"{one.event_id} came from a device that is {one.trust}"

    @property
    def _encrypted(self) -> set[str]:
        return {room for room, info in self._states.encryption.items() if info is not None}
