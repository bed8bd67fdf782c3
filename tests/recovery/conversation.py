"""A conversation with a bot that may die at any moment, and the judgement of what the room saw."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.bot import Bot
    from tests.support.person import Person, Read

PATIENCE_S = 60.0
LIVES_S = 400.0
"""How long somebody waits to be let in or answered while the bot dies again and again."""


@contextlib.contextmanager
def naming(where: str) -> Iterator[None]:
    """Add `where` to the text of a failed claim inside."""
    try:
        yield
    except AssertionError as error:
        error.add_note(where)
        raise


@dataclass(eq=False)
class Conversation:
    """Somebody who asks the bot into a room, says a few things there and waits for an answer to each."""

    who: Person
    bot: Bot
    encrypted: bool = True
    room: str = ""
    asked: dict[str, str] = field(default_factory=dict)
    """Text that the one answer holds, by the event that asked."""
    tags: list[str] = field(default_factory=list)
    """Those of the messages, each of one."""
    commands: int = 0
    mentions: bool = False
    """Whether the bot has to be named: a room, not a direct message."""

    async def open(self) -> None:
        """Invite the bot into a new direct message, and return when it is in."""
        self.room = await self.who.direct_message(self.bot.user_id, encrypted=self.encrypted)
        await self.who.sees_member(self.room, self.bot.user_id, timeout_s=LIVES_S)

    async def says(self, text: str, answer: str) -> str:
        """Say something that is answered with `answer` in it."""
        event = await self.who.say(self.room, text, mention=self.bot.user_id if self.mentions else None)
        self.asked[event] = answer
        return event

    async def says_everything(self) -> None:
        """Open, and say what walks through every kind of turn: a tool, a reference, a failure, a command."""
        await self.open()
        first = await self.says("tool anything at all\necho one\n#first", "#first · one")
        second = await self.who.reply(self.room, first, "reference")
        self.asked[second] = "echo one"
        await self.says("fail I am sorry about three\n#third", "#third · I am sorry about three")
        self.tags += ["first", "third"]
        await self.who.say(self.room, "!help")
        self.commands += 1

    def answers_of(self, text: str) -> list[Read]:
        """Return the bot's messages that hold `text`."""
        return [one for one in self.who.messages(self.room, sender=self.bot.user_id) if text in one.body]

    async def is_answered(self) -> None:
        """Return when everything that was asked has an answer."""
        await self.who.finds(lambda: all(self.who.answers(event) for event in self.asked), what="an answer to each", timeout_s=PATIENCE_S)

    async def is_judged(self) -> None:
        """Say a last word, which is answered after all that is owed, and fail where the room saw anything but one answer to each."""
        await self.says("echo the last word", "the last word")
        looked = {await self.says(f"!hashtags {tag}", "/resume ") for tag in self.tags}
        await self.is_answered()
        await self.who.catches_up()
        for event, expected in self.asked.items():
            answers = self.who.answers(event)
            assert len(answers) == 1, f"{event} has {len(answers)} answers: {[one.body for one in answers]}"
            body = answers[0].body
            assert expected in body, f"asked for {expected!r}, answered {body!r}"
            if event in looked:
                assert body.count("/resume ") == 1, f"indexed more than once: {body!r}"
            else:
                label, dot, _ = expected.rpartition(" · ")
                assert body.split(" · ")[:-1] == ([label] if dot else []), f"labelled wrongly: {body!r}"
        said = self.who.messages(self.room, sender=self.bot.user_id)
        helps = [one for one in said if one.reply_to not in self.asked or self._is_help(one)]
        assert len([one for one in said if self._is_help(one)]) == self.commands, [one.body[:60] for one in helps]
        assert len(said) == len(self.asked) + self.commands, [one.body[:60] for one in said]
        self.who.check_strictly(self.room)

    @staticmethod
    def _is_help(one: Read) -> bool:
        return "!help" in one.body
