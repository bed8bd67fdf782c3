"""Situations that reach steps which an ordinary conversation does not: each is provoked anew for every kill."""

from __future__ import annotations

import asyncio
import secrets
import signal
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from tests.recovery.conversation import LIVES_S, Conversation
from tests.support.crashing import Crash, Step

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from hayate_matrix.demo.homeserver import Homeserver
    from tests.support.bot import Bot
    from tests.support.plugin import MakePerson


@dataclass
class Stage:
    """One bot, and the conversations that it has had."""

    person: MakePerson
    bot: Bot
    homeserver: Homeserver
    conversations: list[Conversation] = field(default_factory=list)
    talks: list[asyncio.Task[None]] = field(default_factory=list)

    async def conversation(self, *, encrypted: bool = True) -> Conversation:
        """Return a new conversation with somebody new; it is not open yet."""
        self.conversations.append(Conversation(await self.person("alice"), self.bot, encrypted=encrypted))
        return self.conversations[-1]

    def talk(self, what: Awaitable[None]) -> None:
        """Let something go on while the bot dies."""
        self.talks.append(asyncio.ensure_future(what))

    async def dies_at(self, crash: Crash) -> None:
        """Wait until the bot has killed itself, and fail with what went wrong in a conversation where it did not."""
        try:
            await self.bot.dies_at(crash)
        except AssertionError as error:
            for talk in self.talks:
                if talk.done():
                    talk.result()
            for conversation in self.conversations:
                error.add_note(f"{conversation.room}: {conversation.who.members.get(conversation.room)} {conversation.who.describe()}")
            raise

    async def is_judged(self) -> None:
        """Judge all conversations."""
        await asyncio.wait_for(asyncio.gather(*self.talks), LIVES_S)
        for conversation in self.conversations:
            await conversation.is_judged()


async def _open_one(stage: Stage) -> None:
    await stage.bot.start()
    conversation = await stage.conversation()
    await conversation.open()
    await stage.bot.stop()


async def _open_room(stage: Stage) -> None:
    """Open a room in which the bot has no power: of a direct message it would be a creator."""
    await stage.bot.start()
    conversation = await stage.conversation()
    conversation.mentions = True
    conversation.room = await conversation.who.create_room(invite=[stage.bot.user_id])
    await conversation.who.sees_member(conversation.room, stage.bot.user_id)
    await stage.bot.stop()


async def _only_keys(stage: Stage) -> None:
    await stage.bot.start()
    await stage.bot.stop()


@dataclass(frozen=True)
class Scene:
    """A situation: how it is prepared once, and how it is played for one kill."""

    steps: list[Step]
    play: Callable[[Stage, Crash], Awaitable[None]]
    prepare: Callable[[Stage], Awaitable[None]] = _only_keys
    settings: dict[str, str] = field(default_factory=dict)
    also: Literal["", "sends are old", "answers can't be applied whole"] = ""


async def _gap(stage: Stage, crash: Crash) -> None:
    """More happened while it was down than one answer shows."""
    conversation = stage.conversations[0]
    await conversation.says(f"echo before the gap {crash}", "before the gap")
    for _ in range(60):
        await conversation.who.say(conversation.room, "noise", msgtype="m.notice")
    await conversation.says(f"echo after the gap {crash}", "after the gap")
    await stage.bot.start(is_ready=False, crash=crash)
    await stage.dies_at(crash)


async def _plain(stage: Stage, crash: Crash) -> None:
    """A room in clear, where somebody refers to what was said before the bot came."""
    await stage.bot.start(is_ready=False, crash=crash)
    conversation = await stage.conversation(encrypted=False)

    async def talk() -> None:
        who = conversation.who
        conversation.room = await who.create_room(encrypted=False, direct=True)
        old = await who.say(conversation.room, "old words")
        await who.ask("POST", f"/_matrix/client/v3/rooms/{conversation.room}/invite", {"user_id": stage.bot.user_id})
        account_data = f"/_matrix/client/v3/user/{who.user_id}/account_data/m.direct"
        await who.ask("PUT", account_data, {stage.bot.user_id: [conversation.room]})
        await who.sees_member(conversation.room, stage.bot.user_id, timeout_s=LIVES_S)
        event = await who.reply(conversation.room, old, "reference", **{"m.mentions": {"user_ids": [stage.bot.user_id]}})
        conversation.asked[event] = "old words"
        conversation.mentions = True
        await conversation.says("echo in clear", "in clear")

    stage.talk(talk())
    await stage.dies_at(crash)


async def _late_key(stage: Stage, crash: Crash) -> None:
    """The key comes after the message."""
    await stage.bot.start(is_ready=False, crash=crash)
    conversation = await stage.conversation()

    async def talk() -> None:
        await conversation.open()
        event, hand_key = await conversation.who.say_before_key(conversation.room, "echo sealed yet")
        conversation.asked[event] = "sealed yet"
        await conversation.says("echo newer", "newer")
        await conversation.who.finds(lambda: conversation.answers_of("newer"), what="the newer one answered", timeout_s=LIVES_S)
        await hand_key(stage.bot.user_id)

    stage.talk(talk())
    await stage.dies_at(crash)


async def _stopped(stage: Stage, crash: Crash) -> None:
    """SIGTERM in the middle of a turn."""
    conversation = stage.conversations[0]
    await stage.bot.start(crash=crash)
    await conversation.says(f"slow 3 at last {crash}", "at last")
    who = conversation.who
    await who.finds(lambda: stage.bot.user_id in who.typing.get(conversation.room, []), what="the bot to type")
    stage.bot.send_signal(signal.SIGTERM)
    await stage.dies_at(crash)


async def _muted(stage: Stage, crash: Crash) -> None:
    """The bot may not speak while something is owed."""
    conversation = stage.conversations[0]
    who, room = conversation.who, conversation.room
    await stage.bot.start(crash=crash)
    status, levels = await who.request("GET", f"/_matrix/client/v3/rooms/{room}/state/m.room.power_levels/")
    assert status == 200, levels
    await who.put_state(room, "m.room.power_levels", {**levels, "events_default": 50})
    await conversation.says(f"echo kept for later {crash}", "kept for later")
    await stage.dies_at(crash)
    await who.put_state(room, "m.room.power_levels", levels)


async def _allowlist(stage: Stage, crash: Crash) -> None:
    """One room on the list, by its alias, and an invite to another."""
    name = stage.bot.settings["matrix.rooms"][1:].split(":")[0]
    await stage.bot.start(is_ready=False, crash=crash)
    if not stage.conversations:
        conversation = await stage.conversation()
        conversation.mentions = True
        conversation.room = await conversation.who.create_room(invite=[stage.bot.user_id], room_alias_name=name)

        async def talk() -> None:
            await conversation.who.sees_member(conversation.room, stage.bot.user_id, timeout_s=LIVES_S)
            await conversation.says("echo allowed", "allowed")

        stage.talk(talk())
    who = stage.conversations[0].who
    other = await who.create_room(invite=[stage.bot.user_id])
    stage.talk(who.sees_member(other, stage.bot.user_id, "leave", timeout_s=LIVES_S))
    await stage.dies_at(crash)


async def _old_sends(stage: Stage, crash: Crash) -> None:
    """A delivery that is too old to trust the transaction id: the room is searched first."""
    conversation = stage.conversations[0]
    # What the life before owes is sent at once, so it may die before anybody saw it ready.
    await stage.bot.start(is_ready=False, crash=Crash(Step("request", "send"), crash.when))
    await conversation.says(f"echo searched for {crash}", "searched for")
    await stage.dies_at(Crash(Step("request", "send"), crash.when))
    await stage.bot.start(is_ready=False, crash=crash)
    await stage.dies_at(crash)


async def _in_parts(stage: Stage, crash: Crash) -> None:
    """A sync answer that can't be applied at once, and is applied in parts."""
    conversation = stage.conversations[0]
    await stage.bot.start(is_ready=False, crash=crash)
    for number in range(3):
        await conversation.says(f"echo part {number} {crash}", f"part {number}")
    await stage.dies_at(crash)


def _steps(kind: Literal["request", "transaction"], *names: str) -> list[Step]:
    return [Step(kind, name) for name in names]


SCENES = {
    "gap": Scene([*_steps("request", "messages"), *_steps("transaction", "sync.gap")], _gap, _open_one),
    "plain": Scene(
        [*_steps("request", "encryption_state", "reference"), *_steps("transaction", "room.plain", "send.keep_plain", "edge.reference")],
        _plain,
    ),
    "late key": Scene(_steps("transaction", "keys.late"), _late_key),
    "stopped": Scene(_steps("transaction", "turn.suspend"), _stopped, _open_one),
    "muted": Scene(_steps("transaction", "delivery.hold"), _muted, _open_room),
    "allowlist": Scene(
        [*_steps("request", "alias", "leave"), *_steps("transaction", "room.alias", "room.left")],
        _allowlist,
        settings={"matrix.rooms": f"#garden-{secrets.token_hex(3)}:world.test"},
    ),
    "old sends": Scene([*_steps("request", "search"), *_steps("transaction", "send.search")], _old_sends, _open_one, also="sends are old"),
    "in parts": Scene(
        _steps("transaction", "sync.apply_part", "sync.position"), _in_parts, _open_one, also="answers can't be applied whole"
    ),
}
