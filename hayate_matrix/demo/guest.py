"""The person of the demo: a small client on the project's own edge, with a device and a cross-signed identity like anybody's.

It runs on every Python that the bot runs on; the tests have a person on another implementation of the cryptography (tests/support/person).
"""

from __future__ import annotations

import asyncio
import secrets
import time
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from hayate_matrix.app import SystemClock
from hayate_matrix.core.allowlist import Policy
from hayate_matrix.core.facts import Membership, Message
from hayate_matrix.core.ids import RoomId, UserId
from hayate_matrix.demo.environment import SILENCE_S
from hayate_matrix.demo.homeserver import HomeserverError
from hayate_matrix.matrix.account import Account, log_in_with_password
from hayate_matrix.matrix.client import Edge, EdgeOptions
from hayate_matrix.matrix.http import Http, room_path
from hayate_matrix.matrix.keystore import KeyStore
from hayate_matrix.store.sealing import Sealer, load_key

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from pathlib import Path

    from hayate_matrix.core.facts import AnyFact
    from hayate_matrix.demo.homeserver import Say
    from hayate_matrix.matrix.keystore.roomrows import Room

T = TypeVar("T")
PATIENCE_S = 90.0


def _add_as_text(add: Callable[..., None], room: Room, event: dict[str, Any], *arguments: object, **options: object) -> None:
    """Let somebody read notices too, which a bot passes over."""
    content = event.get("content")
    if isinstance(content, dict) and content.get("msgtype") == "m.notice":
        event = {**event, "content": {**content, "msgtype": "m.text"}}
    add(room, event, *arguments, **options)


class Guest(Edge):
    """Somebody who makes rooms, says things and reads what others say."""

    heard: list[AnyFact]
    """What happened in the rooms, in order."""
    _say: Say

    @classmethod
    async def enter(cls, homeserver: str, user_id: str, password: str, home: Path, say: Say) -> Guest:
        """Log in, cross-sign the device and begin to listen."""
        keys = home / "secrets"
        for folder in (home, keys):
            folder.mkdir(mode=0o700)
        clock = SystemClock()
        http = Http(homeserver, clock)
        credentials = await log_in_with_password(http, keys, user_id, password, device_name="Demo", device_id=None)
        account = Account(http, keys, credentials, read_password=lambda: password, device_name="Demo")
        store = KeyStore(home / "matrix.db", Sealer(load_key(keys)), clock)
        options = EdgeOptions(policy=Policy(own_user_id=credentials.user_id), password=password)
        guest = cls(store, http, account, clock, options, may_take=lambda: True)
        guest.heard, guest._say = [], say
        await guest.open()
        guest._timeline.add = partial(_add_as_text, guest._timeline.add)  # type: ignore[method-assign]  # notices are no facts for a bot
        await guest.start(guest)
        return guest

    async def accept(self, facts: Sequence[AnyFact]) -> None:
        """Keep what was heard."""
        self.heard += facts

    async def create_room(self, name: str, *, invite: Sequence[str], is_direct: bool = False) -> RoomId:
        """Make an encrypted room with people invited, and return its id once it is known here."""
        body: dict[str, Any] = {
            "name": name,
            "preset": "private_chat",
            "invite": list(invite),
            "is_direct": is_direct,
            "initial_state": [{"type": "m.room.encryption", "state_key": "", "content": {"algorithm": "m.megolm.v1.aes-sha2"}}],
        }
        answer = await self._http.request("guest.room", "POST", "/_matrix/client/v3/createRoom", body=body)
        room_id = RoomId(str(answer["room_id"]))
        await self.waits(f"the room {name} to be made", partial(self._is_in, room_id))
        return room_id

    async def _is_in(self, room_id: RoomId) -> bool:
        room = await self._keystore.read(lambda: self.rooms.find(room_id))
        return room.membership == "join" and room.is_encrypted is True

    async def says(self, room_id: RoomId, text: str, *, to: str | None = None) -> str:
        """Say `text`, encrypted, with a mention of `to`, and return the event id."""
        content = {"msgtype": "m.text", "body": text, "m.mentions": {"user_ids": [to]} if to else {}}
        sealed: list[dict[str, Any]] = []
        await self._sharing.encrypt(room_id, [{"type": "m.room.message", "content": content}], sealed.extend)
        path = room_path(room_id, "send", "m.room.encrypted", secrets.token_hex(8))
        return str((await self._http.request("guest.say", "PUT", path, body=sealed[0]))["event_id"])

    async def sees_answer(self, event_id: str) -> Message:
        """Return the message that answers `event_id`."""

        async def look() -> Message | None:
            return next((one for one in self.heard if isinstance(one, Message) and one.reply_to == event_id), None)

        return await self.waits("the answer", look)

    async def sees_member(self, room_id: RoomId, user_id: str, membership: str) -> None:
        """Return when the membership of `user_id` became `membership`."""
        wanted = (room_id, UserId(user_id), membership)

        async def look() -> bool:
            return any(isinstance(one, Membership) and (one.room_id, one.user, one.membership) == wanted for one in self.heard)

        await self.waits(f"the bot to {membership}", look)

    async def waits(self, what: str, look: Callable[[], Awaitable[T | None]]) -> T:
        """Return what `look` gives once it is true, and say what is waited for while it takes long.

        Raises:
            HomeserverError: it did not come.
        """
        started = said = time.monotonic()
        while True:
            found = await look()
            if found:
                return found
            now = time.monotonic()
            if now - started > PATIENCE_S:
                message = f"Waited {PATIENCE_S:.0f} s for {what}; it did not come."
                raise HomeserverError(message)
            if now - said > SILENCE_S:
                said = now
                self._say(f"  ... waiting for {what} ({now - started:.0f} s)")
            await asyncio.sleep(0.05)
