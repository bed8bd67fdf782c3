"""Which rooms are served, who may speak in them, and who may invite."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hayate_matrix.core.allowlist import (
    FROM_A_PERSON,
    REASONS,
    Act,
    Decision,
    Policy,
    RoomEntry,
    RoomView,
    decide,
    decide_inviter,
    decide_person,
    decide_room,
    describe_rooms,
    parse_pattern,
    parse_person,
    parse_room,
    parse_user,
)
from hayate_matrix.core.ids import RoomId, UserId
from hayate_matrix.errors import InputError

BOT = UserId("@bot:example.org")
ANN = UserId("@ann:example.org")
BOB = UserId("@bob:elsewhere.net")
ROOM = RoomId("!ops:example.org")
OTHER_ROOM = RoomId("!other:example.org")

UNSET = Policy(own_user_id=BOT)
EMPTY = Policy(own_user_id=BOT, rooms=())
LISTED = Policy(own_user_id=BOT, rooms=(RoomEntry("room", ROOM),))
NOT_LISTED = Policy(own_user_id=BOT, rooms=(RoomEntry("room", OTHER_ROOM),))


def view(room_id: RoomId = ROOM, *others: UserId) -> RoomView:
    return RoomView(room_id=room_id, others=frozenset(others) if others else None)


@pytest.mark.requirement("ROOM-9", "ROOM-1", "ROOM-3")
@pytest.mark.parametrize("act", Act)
@pytest.mark.parametrize(
    ("policy", "is_served"),
    [
        pytest.param(UNSET, True, id="unset"),
        pytest.param(EMPTY, False, id="empty"),
        pytest.param(LISTED, True, id="listed"),
        pytest.param(NOT_LISTED, False, id="another room listed"),
    ],
)
def test_allowlist_decides_every_act_alike(policy: Policy, is_served: bool, act: Act) -> None:
    """Unset serves, empty denies and a list serves just its rooms, for whatever is about to happen there."""
    assert bool(decide(policy, act, view(), {}, sender=ANN)) is is_served


@pytest.mark.requirement("ROOM-3")
@pytest.mark.parametrize("act", Act)
def test_no_person_opens_a_denied_room(act: Act) -> None:
    """Being allowed to speak and to invite changes nothing about a room that is denied."""
    policy = Policy(own_user_id=BOT, rooms=(), people=(ANN,), inviters=(ANN,))
    assert decide(policy, act, view(ROOM, ANN), {}, sender=ANN) == Decision(is_allowed=False, reason="empty-list")


@pytest.mark.requirement("ROOM-4")
@pytest.mark.parametrize("act", sorted(FROM_A_PERSON))
def test_in_a_served_room_only_people_who_may_speak_are_heard(act: Act) -> None:
    """In a served room an act that a person asks for needs that person to be allowed, and a known one."""
    policy = Policy(own_user_id=BOT, people=(ANN,))
    assert decide(policy, act, view(), {}, sender=ANN)
    assert decide(policy, act, view(), {}, sender=BOB).reason == "person-not-listed"
    assert not decide(policy, act, view(), {})


@pytest.mark.requirement("ROOM-9")
@pytest.mark.parametrize("act", [Act.LATE_RESULT, Act.API_RUN, Act.SCHEDULE])
def test_what_no_person_asks_for_needs_the_room_alone(act: Act) -> None:
    """A late result, a run and a schedule go to a served room whoever may speak there."""
    assert decide(Policy(own_user_id=BOT, people=()), act, view(), {})


@pytest.mark.requirement("ROOM-2")
@pytest.mark.parametrize(
    ("text", "entry"),
    [
        ("!abc:example.org", RoomEntry("room", "!abc:example.org")),
        ("!abc:example.org:8448", RoomEntry("room", "!abc:example.org:8448")),
        ("!31hneApxJ_1o-63DmFrpeqnkFfWppnzWso1JvH3ogLM", RoomEntry("room", "!31hneApxJ_1o-63DmFrpeqnkFfWppnzWso1JvH3ogLM")),
        ("!abc:[2001:db8::1]:8448", RoomEntry("room", "!abc:[2001:db8::1]:8448")),
        ("#ops:example.org", RoomEntry("alias", "#ops:example.org")),
        ("#a,b=c:example.org", RoomEntry("alias", "#a,b=c:example.org")),
        ("dm:@ann:example.org", RoomEntry("dm", "@ann:example.org")),
    ],
)
def test_room_items_of_each_allowed_form_are_read(text: str, entry: RoomEntry) -> None:
    """A room id with and without a server, an alias and a direct message are items."""
    assert parse_room(text) == entry


@pytest.mark.requirement("ROOM-2")
@pytest.mark.parametrize(
    "text",
    [
        "",
        "ops",
        "!",
        "#ops",
        "@ann:example.org",
        "dm:ann",
        "dm:@ann",
        "dm:!a:b",
        " !a:b",
        "!a:b ",
        "!a b:c",
        "!a:",
        "*",
        "!a:exa mple",
        "#" + "a" * 260 + ":b",
    ],
)
def test_a_room_item_of_another_form_is_named_with_what_is_allowed(text: str) -> None:
    """A wrong item is refused with its text and the forms that are allowed."""
    with pytest.raises(InputError) as caught:
        parse_room(text)
    assert repr(text) in caught.value.problem
    assert "#ops:example.org" in caught.value.allowed
    assert "dm:@" in caught.value.allowed


@pytest.mark.requirement("ROOM-4")
@pytest.mark.parametrize("text", ["ann", "@ann", "Ann Example", "*", "*:", "example.org", "@*:example.org x", "@ann:example.org "])
def test_names_that_are_not_whole_ids_name_nobody(text: str) -> None:
    """A display name, a local part or half a server is refused."""
    with pytest.raises(InputError, match="names nobody"):
        parse_person(text)


@pytest.mark.requirement("ROOM-4")
def test_whole_ids_servers_and_patterns_are_read() -> None:
    """A whole user id, a whole server and a pattern are taken as they are."""
    assert parse_person(ANN) == ANN
    assert parse_person("*:example.org:8448") == "*:example.org:8448"
    assert parse_pattern("@_discord_*:*") == "@_discord_*:*"
    assert parse_user(ANN) == ANN
    with pytest.raises(InputError, match="is no user id"):
        parse_user("*:example.org")
    with pytest.raises(InputError, match="matches no user id"):
        parse_pattern("discord*")


@pytest.mark.requirement("ROOM-4")
def test_people_are_compared_whole_and_in_their_case() -> None:
    """Another case, a longer server and a subdomain are other people."""
    policy = Policy(own_user_id=BOT, people=(ANN, "*:trusted.net"))
    assert decide_person(policy, ANN)
    assert decide_person(policy, UserId("@x:trusted.net"))
    for other in (
        "@Ann:example.org",
        "@ann:example.org.evil.net",
        "@ann:sub.example.org",
        "@x:sub.trusted.net",
        "@x:trusted.net:8448",
        "@x:TRUSTED.net",
    ):
        assert not decide_person(policy, UserId(other)), other


@pytest.mark.requirement("ROOM-4")
def test_unset_people_means_anyone_and_empty_people_nobody() -> None:
    """Unset and empty are two different things for people too."""
    assert decide_person(Policy(own_user_id=BOT), BOB)
    assert not decide_person(Policy(own_user_id=BOT, people=()), BOB)


@pytest.mark.requirement("ROOM-4")
def test_own_events_and_ignored_accounts_are_never_acted_on() -> None:
    """The bot itself and accounts that match a pattern are refused even where they are listed."""
    policy = Policy(own_user_id=BOT, people=("*:example.org",), inviters=("*:example.org",), ignore=("@_irc_*:*", "@nag?bot:example.org"))
    for user in (BOT, UserId("@_irc_ann:example.org"), UserId("@nag2bot:example.org")):
        assert not decide_person(policy, user)
        assert not decide_inviter(policy, user)
    assert decide_person(policy, UserId("@irc_ann:example.org"))


@pytest.mark.requirement("ROOM-4")
@pytest.mark.parametrize(
    ("people", "inviters", "may_ann", "may_bob"),
    [
        pytest.param(None, None, True, False, id="both unset: the bot's own server"),
        pytest.param((BOB,), None, False, True, id="people set: those"),
        pytest.param((), None, False, False, id="people empty: nobody"),
        pytest.param((ANN,), (BOB,), False, True, id="inviters set: those, whoever may speak"),
        pytest.param((ANN,), (), False, False, id="inviters empty: nobody"),
    ],
)
def test_who_may_invite(people: tuple[str, ...] | None, inviters: tuple[str, ...] | None, *, may_ann: bool, may_bob: bool) -> None:
    """Inviters as set, else the people where those are set, else the accounts of the bot's own server."""
    policy = Policy(own_user_id=BOT, people=people, inviters=inviters)
    assert bool(decide(policy, Act.INVITE, view(), {}, sender=ANN)) is may_ann
    assert bool(decide(policy, Act.INVITE, view(), {}, sender=BOB)) is may_bob


@pytest.mark.requirement("ROOM-10")
def test_an_invite_after_a_ban_is_refused() -> None:
    """A ban is not undone by whoever invites."""
    banned = RoomView(room_id=ROOM, others=frozenset({ANN}), is_banned=True)
    assert decide(LISTED, Act.INVITE, banned, {}, sender=ANN).reason == "banned"


@pytest.mark.requirement("ROOM-2")
def test_an_alias_serves_the_room_that_it_was_pinned_to_and_no_other() -> None:
    """An alias that is not pinned denies; one that is pinned serves that room id alone."""
    policy = Policy(own_user_id=BOT, rooms=(RoomEntry("alias", "#ops:example.org"),))
    assert decide_room(policy, view(), {}).reason == "alias-not-pinned"
    assert decide_room(policy, view(), {"#ops:example.org": ROOM})
    assert decide_room(policy, view(), {"#ops:example.org": OTHER_ROOM}).reason == "not-listed"
    assert decide_room(policy, view(), {"#other:example.org": ROOM}).reason == "alias-not-pinned"


@pytest.mark.requirement("ROOM-2")
def test_a_direct_message_entry_holds_only_while_nobody_else_is_there() -> None:
    """With a third person, with another person or with members unknown the entry serves nothing."""
    policy = Policy(own_user_id=BOT, rooms=(RoomEntry("dm", ANN),))
    assert decide_room(policy, view(ROOM, ANN), {})
    assert decide_room(policy, view(ROOM, ANN, BOB), {}).reason == "not-alone"
    assert decide_room(policy, view(ROOM, BOB), {}).reason == "not-listed"
    assert decide_room(policy, view(), {}).reason == "members-unknown"
    assert decide_room(policy, RoomView(room_id=ROOM, others=frozenset()), {}).reason == "not-listed"


@pytest.mark.requirement("ROOM-1")
def test_the_three_allowlists_are_told_apart_in_words() -> None:
    """Whoever reads which allowlist is in force can't take one for another."""
    assert describe_rooms(None).startswith("unset: every room is served")
    assert describe_rooms(()) == "an empty list: all rooms are denied"
    assert describe_rooms(("!a:b.org", "!c:b.org")) == "a list of 2"


@pytest.mark.requirement("ROOM-1")
def test_every_reason_has_words_for_the_operator() -> None:
    """Each decision can be told in a sentence."""
    assert decide_room(EMPTY, view(), {}).text == REASONS["empty-list"]
    assert all(REASONS.values())


@pytest.mark.requirement("ROOM-2")
@given(st.text(max_size=40))
def test_no_text_that_is_read_as_an_item_serves_another_room(text: str) -> None:
    """Whatever item is accepted, it denies a room that it does not name."""
    try:
        entry = parse_room(text)
    except InputError:
        return
    policy = Policy(own_user_id=BOT, rooms=(entry,))
    assert not decide_room(policy, view(RoomId("!quite-another:example.org"), BOB), {})
