"""Tags of a message: indexed once with its turn, put in front of its reply, looked up without a trace."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest

from hayate_matrix.core.ids import EventId, UserId
from hayate_matrix.core.transcript import Resolved, Said
from tests.support.desk import ALICE, BOB, DIRECT, ROOM, CountingRuntime, Desk
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from tests.harness.conftest import MakeDesk

INDEXED = "SELECT count(*) FROM tags"
ACTIVE = "SELECT count(*) FROM sessions WHERE state = 'active'"


@pytest.mark.requirement("LBL-1", "LBL-2", "IDX-1")
async def test_a_reply_carries_the_tags_of_its_request_sorted(desk: Desk) -> None:
    """Each tag is one row and stands in front of the reply; a label that the model wrote is replaced, an untagged reply is raw."""
    assert await desk.ask("echo #rollout starts, says #hashtags") == ["#hashtags #rollout · #rollout starts, says #hashtags"]
    assert await desk.ask("echo #mine · done\n#given") == ["#given #mine · done\n#given"]
    assert await desk.ask("echo #mine · done and (#x) isn't a tag") == ["#mine · done and (#x) isn't a tag"]
    assert await desk.count(INDEXED) == 5


@pytest.mark.requirement("LBL-1")
async def test_the_stored_reply_stays_raw(desk: Desk) -> None:
    """A reply that is sent anew, and the transcript that the model reads, hold no label; the room sees one."""
    desk.gateway.is_losing_answers = True
    await desk.say("echo starts at nine\n#rollout")
    await eventually(lambda: desk.gateway.calls)
    desk.gateway.is_losing_answers = False
    await desk.crash()
    await desk.start()
    await desk.idle()
    assert desk.gateway.get_texts(DIRECT) == ["#rollout · starts at nine\n#rollout"]
    await desk.ask("history")
    assert isinstance(desk.runtime, CountingRuntime)
    said = [element.text for element in desk.runtime.prompts[-1].transcript if isinstance(element, Said)]
    assert said == ["starts at nine\n#rollout"]


@pytest.mark.requirement("LBL-4")
async def test_the_model_is_told_the_tags(desk: Desk) -> None:
    """The tags of the current request are there as information, those of an earlier one are not."""
    assert await desk.ask("tags #two #one") == ["#one #two · two one"]
    assert await desk.ask("tags") == ["There are no tags."]


@pytest.mark.requirement("SRC-3")
async def test_the_tags_stand_in_the_inbox_row_and_in_the_task(desk: Desk) -> None:
    """Both know the request's tags, each once and in reading order; those of a request without any are empty."""
    tagged = await desk.say("echo #two #one and #two")
    await desk.idle()
    untagged = await desk.say("echo none")
    await desk.idle()
    stored = "SELECT inbox.event_id, inbox.tags, tasks.tags FROM inbox JOIN tasks ON tasks.request_event_id = inbox.event_id ORDER BY seq"
    rows = await desk.database.read(lambda connection: connection.exec_driver_sql(stored).all())
    assert [tuple(row) for row in rows] == [(tagged.event_id, "two one", "two one"), (untagged.event_id, "", "")]


@pytest.mark.requirement("SRC-1", "IN-4")
async def test_an_edit_takes_tags_away_and_never_adds_one(desk: Desk) -> None:
    """Of a queued request those go that its new text lacks; a follow-up and an edit that adds the mention are untagged."""
    first = await desk.say("slow 5 first")
    waiting = await desk.say("tags #one #two")
    await eventually(lambda: desk.clock.waits)
    await desk.accept(desk.edit(waiting, "tags #two #three"))
    desk.clock.jump(5)
    await desk.idle()
    await desk.accept(desk.edit(first, "tags #four"))
    await desk.idle()
    unmentioned = await desk.say("tags #five", room=ROOM)
    await desk.accept(desk.edit(unmentioned, "@bot tags #five"))
    await desk.idle()
    assert [delivery.text for delivery in desk.gateway.room] == [
        "first",
        "#two · two",
        "Edited: There are no tags.",
        "There are no tags.",
    ]
    assert await desk.count(INDEXED) == 1


@pytest.mark.requirement("SRC-1", "IN-4")
async def test_an_edit_that_came_before_its_message_adds_no_tag(desk: Desk) -> None:
    """Sync and gaps can turn the order round; what the message itself did not say is no tag."""
    message = desk.message("tags #one #two")
    await desk.accept(desk.edit(message, "tags #two #three"), message)
    await desk.idle()
    assert desk.gateway.get_texts(DIRECT) == ["#two · two"]


@pytest.mark.requirement("SRC-1", "CORE-4")
async def test_steering_and_commands_set_no_tag(desk: Desk) -> None:
    """What is said in the middle of a turn, and to the bot itself, is neither indexed nor a label."""
    await desk.say("slow 5 done")
    await eventually(lambda: desk.clock.waits)
    await desk.ask_now("!steer #left please")
    desk.clock.jump(5)
    await eventually(lambda: desk.clock.waits)
    desk.clock.jump(5)
    await desk.idle()
    await desk.ask("!new #plan")
    await desk.ask("!hashtags #plan")
    assert await desk.count(INDEXED) == 0
    assert not any(delivery.text.startswith("#") for delivery in desk.gateway.room)


@pytest.mark.requirement("TAG-8", "TAG-2")
async def test_only_the_body_behind_the_mention_is_read(desk: Desk) -> None:
    """Neither the formatted body, nor a file's name, nor what touches the mention is a tag; a caption is."""
    assert await desk.ask("tags", formatted_body="tags #one") == ["There are no tags."]
    assert await desk.ask("", file_name="#two.pdf") == ["Noted: the file #two.pdf."]
    assert await desk.ask("tags #three", file_name="plan.pdf") == ["#three · three"]
    assert await desk.ask("    tags #code") == ["There are no tags."]
    assert await desk.ask("bot:#four", room=ROOM) == ["Noted: #four"]
    assert await desk.ask("@bot: tags #five", room=ROOM) == ["#five · five"]


@pytest.mark.requirement("IDX-6", "IDX-7", "IDX-2")
async def test_a_lookup_shows_each_message_newest_first_and_opens_nothing(desk: Desk) -> None:
    """Time, session, excerpt and how to resume; the time leads to the very message; no session becomes active, another room sees none."""
    old = await desk.say("Check the #release notes   before\nFriday")
    await desk.idle()
    await desk.ask("!close")
    desk.clock.jump(60)
    new = await desk.say("#Release " + "x" * 170 + " and so on and on")
    await desk.idle()
    await desk.ask("!close")
    (answer,) = await desk.ask("/hashtags release")
    lines = answer.split("\n")
    assert lines[0].startswith("2026-11-01T19:35:13.185Z · ")
    assert lines[1] == "  #Release " + "x" * 170 + "…"
    assert lines[2] == "  /resume " + lines[0].partition(" · ")[2]
    assert lines[3].startswith("2026-11-01T19:34:13.185Z · ")
    assert lines[4] == "  Check the #release notes before Friday"
    assert len(lines) == 6
    assert desk.gateway.room[-1].kind == "listing"
    assert desk.gateway.room[-1].links == ((lines[0][:24], new.event_id), (lines[3][:24], old.event_id))
    assert await desk.count(ACTIVE) == 0
    assert "No message here carries a hashtag" in (await desk.ask("!hashtags release", room=ROOM))[0]


@pytest.mark.requirement("IDX-5", "IDX-9")
async def test_the_list_is_sorted_and_says_how_to_set_a_tag_where_there_is_none(desk: Desk) -> None:
    """One tag a line; without any, one sentence with the plain-line rule."""
    (empty,) = await desk.ask("/hashtags")
    assert "`#release`" in empty
    assert "apostrophe" in empty
    await desk.ask("#rollout #hashtags")
    await desk.ask("#a-b #a1 #Rollout")
    assert await desk.ask("/hashtags") == ["#a-b\n#a1\n#hashtags\n#rollout"]


@pytest.mark.requirement("IDX-6")
async def test_ten_a_page_and_the_last_line_says_so(desk: Desk) -> None:
    """The next page goes on where the first ended; the last has no such line."""
    for number in range(1, 13):
        await desk.ask(f"number {number} #many")
    first = (await desk.ask("!hashtags #many"))[0].split("\n")
    assert [line.split()[-2] for line in first[1:30:3]] == [str(number) for number in range(12, 2, -1)]
    assert first[30:] == ["Page 1 of 2; the next: /hashtags #many 2"]
    second = (await desk.ask("!hashtags many 2"))[0].split("\n")
    assert [line.split()[-2] for line in second[1::3]] == ["2", "1"]
    assert len(second) == 6
    assert await desk.ask("!hashtags many 3") == ["`#many` has 2 pages. For example: `!hashtags #many 2`"]


@pytest.mark.requirement("IDX-6", "CMD-2")
@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("!hashtags #relaese", "Did you mean `#release`?"),
        ("!hashtags #zzz", "No message here carries `#zzz`."),
        ("!hashtags #foo_bar", "For example: `!hashtags #release`"),
        ("!hashtags 2", "For example: `!hashtags #release`"),
        ("!hashtags release two", "For example: `!hashtags #release`"),
        ("!hashtags release 0", "For example: `!hashtags #release`"),
        ("!hashtags release 1 2", "For example: `!hashtags #release`"),
        ("!hashtags release ²", "For example: `!hashtags #release`"),
        ("!hashtags release 99999999999999999999", "For example: `!hashtags #release`"),
        ("!hashtags release 999999999", "`#release` has 1 page."),
    ],
)
async def test_each_wrong_use_gets_one_line(desk: Desk, body: str, words: str) -> None:
    """It says what is wrong, and shows an example or the nearest tag."""
    await desk.ask("the #release")
    (answer,) = await desk.ask(body)
    assert words in answer
    assert "\n" not in answer


@pytest.mark.requirement("IDX-4", "IDX-8", "IN-5", "STO-10")
async def test_what_is_gone_is_said_to_be_unavailable(make_desk: MakeDesk) -> None:
    """Redacted, removed with its session by retention, or gone alone: each line names the reason; an edit changes nothing."""
    desk = await make_desk(keep_days=1)
    await desk.ask("old #x")
    await desk.ask("!close")
    desk.clock.jump(2 * 86_400)
    await eventually(lambda: desk.count("SELECT count(*) FROM sessions WHERE state = 'removed'"))
    gone, redacted, edited = desk.message("gone #x"), desk.message("redacted #x"), desk.message("edited #x")
    await desk.accept(gone, redacted, edited)
    await desk.idle()
    await desk.accept(desk.redaction(redacted), desk.edit(edited, "rewritten"))
    await desk.idle()
    await desk.database.transaction(
        "test.gone", lambda connection: connection.exec_driver_sql("DELETE FROM entries WHERE event_id = ?", (gone.event_id,))
    )
    (answer,) = await desk.ask("!hashtags x")
    assert answer.split("\n")[1::3] == [
        "  edited #x",
        "  unavailable: message redacted",
        "  unavailable: message removed",
        "  unavailable: session removed",
    ]
    assert [bool(event_id) for _, event_id in desk.gateway.room[-1].links] == [True, True, False, True]


@pytest.mark.requirement("CORE-3", "IDX-1", "LBL-1")
@pytest.mark.parametrize("is_behind", [False, True])
@pytest.mark.parametrize("step", ["turn.open", "turn.end", "delivery.settle"])
async def test_a_killed_turn_indexes_and_labels_once(desk: Desk, step: str, *, is_behind: bool) -> None:
    """Wherever it is cut off, there are one index row and one labelled reply."""
    desk.database.kill_at, desk.database.is_behind = step, is_behind
    await desk.say("Check the #release notes before Friday")
    await eventually(lambda: desk.database.is_dead)
    await desk.crash()
    await desk.start()
    await desk.idle()
    assert desk.gateway.get_texts(DIRECT) == ["#release · Noted, I will check the release notes."]
    assert await desk.count(INDEXED) == 1


@pytest.mark.requirement("LBL-1", "OUT-7")
async def test_a_failed_turn_is_labelled_too(desk: Desk) -> None:
    """Whoever asked under a tag sees which request has failed; a reaction is no text."""
    (sentence,) = await desk.ask("fail no luck\n#release")
    assert sentence.startswith("#release · no luck")


@pytest.mark.requirement("LBL-6")
async def test_status_shows_the_tags_of_the_work(desk: Desk) -> None:
    """What runs and what waits is told with its tags, once each."""
    await desk.say("slow 3600 here #b #a")
    await desk.say("echo #c")
    await desk.say("echo #c #d")
    await eventually(lambda: desk.clock.waits)
    assert await desk.ask_now("!status") == "In this room: running: 1 (#a #b) · waiting: 2 (#c #d) · to be sent: 0"


@pytest.mark.requirement("SES-4", "SRC-2")
async def test_another_provider_of_sessions_can_hold_the_texts(desk: Desk) -> None:
    """The lookup asks whoever holds the sessions; what that one says is what is shown."""

    class Elsewhere:
        async def resolve(self, conversation_id: str, pointers: tuple[object, ...]) -> list[Resolved]:
            assert conversation_id
            return [Resolved(text="kept elsewhere", event_id=EventId("$there")) for _ in pointers]

    await desk.ask("here #x")
    desk.harness._commands._lookups._provider = Elsewhere()  # type: ignore[assignment]
    (answer,) = await desk.ask("!hashtags x")
    assert answer.split("\n")[1] == "  kept elsewhere"


@pytest.mark.requirement("IN-8", "IDX-5")
@pytest.mark.parametrize(
    "body", ["/hashtags", "//hashtags", "!hashtags", "  !HashTags", "bot: /hashtags", "@bot //hashtags", "@bot:example.org !hashtags"]
)
@pytest.mark.parametrize("place", ["plain", "reply", "thread"])
async def test_every_way_to_ask_gives_the_same_answer(desk: Desk, body: str, place: str) -> None:
    """With any mark, a mention in front, blanks, as a reply or in a thread, which has the room's index."""
    message = await desk.say("@bot the #release", room=ROOM)
    await desk.idle()
    fields = {"plain": {}, "reply": {"reply_to": message.event_id}, "thread": {"thread": message.event_id}}[place]
    assert await desk.ask(body, room=ROOM, sender=UserId("@carol:example.org"), **fields) == ["#release"]
    assert desk.gateway.room[-1].thread == (message.event_id if place == "thread" else None)


@pytest.mark.requirement("SRC-1", "SRC-2")
async def test_history_and_other_speakers_are_no_source(make_desk: MakeDesk) -> None:
    """What nobody asked the bot, and what somebody said who may not speak to it, is not indexed."""
    desk = await make_desk()
    desk.rules = dataclasses.replace(desk.rules, policy=dataclasses.replace(desk.rules.policy, people=(ALICE,)))
    await desk.stop()
    await desk.start()
    await desk.ask("an aside #one", room=ROOM)
    await desk.ask("@bot #two", room=ROOM, sender=BOB)
    assert await desk.count(INDEXED) == 0
