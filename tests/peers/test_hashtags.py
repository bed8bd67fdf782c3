"""Hashtags as somebody sees them who talks to the bot in an encrypted room of a real homeserver, with a strict client (PEER-1)."""

from __future__ import annotations

import html
import json
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

import pytest

from tests.support.crashing import Crash, Step

if TYPE_CHECKING:
    from tests.support.person import Person, Read
    from tests.support.plugin import MakeBot, MakePerson

ASKED = "Check the #release notes before Friday"
ANSWERED = "#release · Noted, I will check the release notes."
TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"
ID = r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"
NOTHING = "No message here carries a hashtag yet"
THREE_DAYS_ON = """
import datetime
from hayate_matrix import app
app.SystemClock.now = lambda clock: datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=3)
"""


async def ask(who: Person, room: str, text: str) -> Read:
    return await who.is_answered(await who.say(room, text))


def find_session(listing: str) -> str:
    """Return the session of a listing of one pointer, which has to be three lines to the letter."""
    lines = listing.split("\n")
    assert len(lines) == 3, listing
    first = re.fullmatch(f"{TIME} · ({ID})", lines[0])
    assert first is not None, listing
    assert lines[1].startswith("  "), listing
    assert lines[2] == f"  /resume {first[1]}"
    return first[1]


def find_links(answer: Read) -> list[str]:
    return [html.unescape(link) for link in re.findall(r'<a href="([^"]*)">', answer.content["formatted_body"])]


@pytest.mark.requirement("IDX-11", "IDX-5", "IDX-6", "IDX-7", "LBL-1", "CMD-3", "PEER-1")
async def test_the_acceptance_run_to_the_letter(person: MakePerson, make_bot: MakeBot) -> None:
    """A tag is set, the bot is started anew with no session active, and lookups lead back to the message; still no session is active."""
    alice = await person("alice")
    bot = await (await make_bot()).start()
    room = await alice.direct_message(bot.user_id)
    await alice.sees_member(room, bot.user_id)
    answer = await ask(alice, room, ASKED)
    assert (answer.body, answer.msgtype) == (ANSWERED, "m.text")
    assert (await ask(alice, room, "/close")).body.startswith("Closed.")
    await bot.restart()
    tags = await ask(alice, room, "/hashtags")
    assert (tags.body, tags.msgtype) == ("#release", "m.notice")
    found = await ask(alice, room, "/hashtags #release")
    session = find_session(found.body)
    assert found.body.split("\n")[1] == f"  {ASKED}"
    sessions = (await ask(alice, room, "/sessions")).body
    assert re.fullmatch(rf"{ASKED} · last used \S+ · 1 message\n  /resume {session}", sessions)
    assert (await ask(alice, room, "history")).body == "1"
    assert (await ask(alice, room, f"/resume {session}")).body == f"Resumed: {ASKED} · {session}"
    assert (await ask(alice, room, "history")).body == "2"
    assert (await ask(alice, room, "/hashtags")).body == "#release"
    alice.check_strictly(room)


@pytest.mark.requirement("IDX-2", "IDX-5", "CMD-1", "IN-8", "CMD-3", "LBL-2")
async def test_a_lookup_is_the_same_however_it_is_written(person: MakePerson, make_bot: MakeBot) -> None:
    """With each mark, behind a pill or a name, with blanks, as a reply and in a thread it has the same answer; elsewhere another."""
    alice = await person("alice")
    bot = await (await make_bot()).start()
    room = await alice.create_room(invite=[bot.user_id])
    await alice.sees_member(room, bot.user_id)
    name = bot.user_id[1:].partition(":")[0]
    asked = await alice.say(room, f"{name}: #rollout and #hashtags, please", mention=bot.user_id)
    answer = await alice.is_answered(asked)
    assert answer.body.startswith("#hashtags #rollout · ")
    pill: dict[str, Any] = {
        "format": "org.matrix.custom.html",
        "formatted_body": f'<a href="https://matrix.to/#/{bot.user_id}">{name}</a>: /hashtags',
        "m.mentions": {"user_ids": [bot.user_id]},
    }
    events = {
        "slash": await alice.say(room, "/hashtags"),
        "two slashes": await alice.say(room, "//hashtags"),
        "exclamation mark": await alice.say(room, "!hashtags"),
        "capitals": await alice.say(room, "!HashTags"),
        "pill": await alice.say(room, f"{name}: /hashtags", **pill),
        "name": await alice.say(room, f"{name}: /hashtags"),
        "at name": await alice.say(room, f"@{name} !hashtags"),
        "blanks": await alice.say(room, "  \t /hashtags  "),
        "reply to the bot": await alice.reply(room, answer.event_id, "/hashtags"),
        "reply to oneself": await alice.reply(room, asked, f"> <{alice.user_id}> #rollout\n\n/hashtags"),
        "thread": await alice.say_in_thread(room, asked, "/hashtags"),
    }
    answers = {how: await alice.is_answered(event) for how, event in events.items()}
    assert {how: (one.body, one.msgtype) for how, one in answers.items()} == dict.fromkeys(events, ("#hashtags\n#rollout", "m.notice"))
    assert {how: one.thread for how, one in answers.items() if one.thread} == {"thread": asked}
    direct = await alice.direct_message(bot.user_id)
    assert (await ask(alice, direct, "/hashtags")).body.startswith(NOTHING)
    await alice.catches_up()
    assert {how: len(alice.answers(event)) for how, event in events.items()} == dict.fromkeys(events, 1)
    alice.check_strictly(room)


@pytest.mark.requirement("IDX-6", "IDX-4", "IDX-8", "SRC-1")
@pytest.mark.parametrize("version", ["10", "12"])
async def test_a_link_opens_the_very_message(person: MakePerson, make_bot: MakeBot, version: str) -> None:
    """The time of each pointer links to its event, in old rooms and new; a redacted one is unavailable, an edited one keeps its words."""
    alice = await person("alice")
    bot = await (await make_bot()).start()
    room = await alice.create_room(invite=[bot.user_id], version=version, name="Garden")
    await alice.sees_member(room, bot.user_id)
    assert (":" in room) == (version == "10")
    events = [await alice.say(room, f"echo the #gate, number {number}", mention=bot.user_id) for number in range(3)]
    for event in events:
        assert (await alice.is_answered(event)).body.startswith("#gate · the #gate, number ")
    await alice.edit(room, events[1], "echo the #fence, rather", mention=bot.user_id)
    assert (await alice.sees(room, "the #fence, rather", sender=bot.user_id)).body == "Edited: the #fence, rather"
    await alice.redact(room, events[0])
    await alice.catches_up()
    listing = await ask(alice, room, "!hashtags GATE")
    texts = [line for line in listing.body.split("\n") if line.startswith("  ") and "/resume" not in line]
    assert texts == ["  echo the #gate, number 2", "  echo the #gate, number 1", "  unavailable: message redacted"]
    opened = []
    for link in find_links(listing):
        parts = urlsplit(link)
        assert (parts.scheme, parts.netloc, parts.path) == ("https", "matrix.to", "/")
        place, _, query = parts.fragment.partition("?")
        assert parse_qs(query) == {"via": ["world.test"]}
        linked_room, linked_event = (unquote(part) for part in place.removeprefix("/").split("/"))
        found = await alice.ask("GET", f"/_matrix/client/v3/rooms/{quote(linked_room, safe='')}/event/{quote(linked_event, safe='')}")
        opened.append((found["room_id"], found["event_id"], found["sender"]))
    assert opened == [(room, event, alice.user_id) for event in reversed(events)]
    assert (await ask(alice, room, "/hashtags")).body == "#gate"
    assert "No message here carries `#fence`" in (await ask(alice, room, "/hashtags fence")).body
    alice.check_strictly(room)


@pytest.mark.requirement("IDX-1", "IDX-2", "LBL-1", "CORE-3", "REL-1", "SES-4")
@pytest.mark.parametrize(("step", "when"), [("turn.open", "after"), ("turn.end", "after")], ids=["indexed", "answered"])
async def test_killed_between_index_and_reply_there_is_one_row_and_one_label(
    person: MakePerson, make_bot: MakeBot, step: str, when: str
) -> None:
    """A kill right behind the commit that indexes, or the one that owes the reply: one pointer, one labelled reply, nothing elsewhere."""
    alice = await person("alice")
    bot = await (await make_bot()).start()
    room = await alice.direct_message(bot.user_id)
    elsewhere = await alice.create_room(invite=[bot.user_id])
    await alice.sees_member(room, bot.user_id)
    await alice.sees_member(elsewhere, bot.user_id)
    await bot.stop()
    crash = Crash(Step("transaction", step), when)  # type: ignore[arg-type]  # one of the two words
    await bot.start(crash=crash)
    asked = await alice.say(room, ASKED)
    await bot.dies_at(crash)
    await bot.start()
    assert (await alice.is_answered(asked)).body == ANSWERED
    session = find_session((await ask(alice, room, "/hashtags #release")).body)
    code, output = await bot.command("export", "--room", room)
    assert code == 0, output
    rows = [json.loads(line) for line in output.splitlines() if line.startswith('{"type": "tag"')]
    assert [(row["tag"], row["session_id"]) for row in rows] == [("release", session)]
    assert (await ask(alice, elsewhere, "/hashtags")).body.startswith(NOTHING)
    assert (await ask(alice, elsewhere, "/hashtags #release")).body.startswith(NOTHING)
    never = f"{session[:-12]}{'0' * 12}"
    foreign = (await ask(alice, elsewhere, f"/resume {session}")).body
    assert foreign.startswith(f"No session `{session}` was found here.")
    assert (await ask(alice, elsewhere, f"/resume {never}")).body == foreign.replace(session, never)
    await alice.catches_up()
    assert [one.body for one in alice.answers(asked)] == [ANSWERED]
    alice.check_strictly()


@pytest.mark.requirement("IDX-8", "SES-3", "STO-10")
async def test_what_retention_took_is_said_to_be_unavailable(person: MakePerson, make_bot: MakeBot) -> None:
    """Three days later a session that is kept for one is gone: its pointer says so, it can't be resumed, and new tags work on."""
    alice = await person("alice")
    bot = await (await make_bot(settings={"sessions.keep_days": "1"})).start()
    room = await alice.direct_message(bot.user_id)
    await alice.sees_member(room, bot.user_id)
    await ask(alice, room, ASKED)
    session = find_session((await ask(alice, room, "/hashtags #release")).body)
    await bot.kill()
    bot.prelude = THREE_DAYS_ON
    await bot.start()
    removed = "old sessions were removed"
    await alice.finds(lambda: any(line.get("event") == removed for line in bot.lines()), what="the session to be removed")
    listing = await ask(alice, room, "/hashtags #release")
    assert find_session(listing.body) == session
    assert listing.body.split("\n")[1] == "  unavailable: session removed"
    assert (await ask(alice, room, f"/resume {session}")).body == f"The session `{session}` is unavailable: session removed."
    assert (await ask(alice, room, "echo and the #gate")).body == "#gate · and the #gate"
    assert (await ask(alice, room, "/hashtags")).body == "#gate\n#release"
    alice.check_strictly(room)
