"""Invites, joins, denied rooms and aliases: where the bot goes, and where it stays out."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from hayate_matrix.core.facts import Membership
from hayate_matrix.core.ids import RoomId
from tests.support.edge import BOT
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from tests.support.edge import EdgeWorld
    from tests.support.fabricated import FabricatedHomeserver, FabricatedRoom
    from tests.support.fabricated.devices import FabricatedUser


def _asked(server: FabricatedHomeserver, what: str) -> list[str]:
    return [asked.path for asked in server.requests("POST", f"*/{what}")]


@pytest.mark.requirement("ROOM-1", "ROOM-4", "ROOM-6", "ROOM-9")
@pytest.mark.parametrize(
    ("options", "inviter", "is_joined"),
    [
        ({}, "@alice:fab.test", True),
        ({}, "@far:other.test", False),
        ({"inviters": ("@far:other.test",)}, "@far:other.test", True),
        ({"inviters": ("@far:other.test",)}, "@alice:fab.test", False),
        ({"inviters": ("@Alice:fab.test",)}, "@alice:fab.test", False),
        ({"inviters": ("*:other.test",)}, "@far:other.test", True),
        ({"people": ("@far:other.test",)}, "@far:other.test", True),
        ({"people": ("@far:other.test",)}, "@alice:fab.test", False),
        ({"people": ()}, "@alice:fab.test", False),
        ({"rooms": []}, "@alice:fab.test", False),
        ({"rooms": ["!new:fab.test"]}, "@alice:fab.test", True),
        ({"rooms": ["!other:fab.test"]}, "@alice:fab.test", False),
        ({"rooms": ["!new:fab.test"]}, "@far:other.test", False),
    ],
)
@pytest.mark.parametrize("is_pending", [True, False])
async def test_invite_is_taken_or_rejected_by_the_settings(
    world: EdgeWorld, server: FabricatedHomeserver, options: dict[str, Any], inviter: str, is_joined: bool, is_pending: bool
) -> None:
    """An invite that a start finds is decided like a new one: joined where room and inviter are allowed, else rejected once."""
    if is_pending:
        server.invites(world.login.user_id, "!new:fab.test", sender=inviter)
    await world.open(**options)
    await world.synced()
    if not is_pending:
        server.invites(world.login.user_id, "!new:fab.test", sender=inviter)
    await eventually(lambda: _asked(server, "join") + _asked(server, "leave"))
    await world.synced()
    assert (len(_asked(server, "join")), len(_asked(server, "leave"))) == ((1, 0) if is_joined else (0, 1))


@pytest.mark.requirement("ROOM-10", "E2E-6")
@pytest.mark.parametrize("is_down", [False, True], ids=["while it looks", "while it is down"])
async def test_room_that_was_left_and_entered_again_is_read_by_whoever_is_in_it(
    world: EdgeWorld, server: FabricatedHomeserver, alice: FabricatedUser, room: FabricatedRoom, *, is_down: bool
) -> None:
    """After a kick and a new invite the bot knows who is in the room: its work ended in between, and its answer can be read."""
    await world.open()
    await world.synced()
    room.says(alice, "before")
    bob = server.user("@bob:fab.test")
    room.member(bob.user_id)
    await world.hears("before")
    await (world.close() if is_down else world.synced())
    room.member(BOT, "leave", sender=alice.user_id)
    if not is_down:
        await world.synced()
    room.member(BOT, "invite", sender=alice.user_id)
    if is_down:
        await world.open()
    await eventually(lambda: BOT in room.members)
    room.says(alice, "again")
    await world.hears("before", "again")
    stays = [fact.membership for fact in world.heard.facts if isinstance(fact, Membership) and fact.is_own]
    assert stays == ["leave", "join"]
    await world.edge.gateway.deliver(world.delivery(room.room_id, "welcome back"))
    for reader in (alice, bob):
        assert reader.device.reads(server.sent[-1]["content"])["content"]["body"] == "welcome back"


@pytest.mark.requirement("ROOM-2", "ROOM-5")
async def test_dm_entry_holds_only_while_nobody_else_is_in_the_room(
    world: EdgeWorld, server: FabricatedHomeserver, alice: FabricatedUser
) -> None:
    """`dm:@alice` serves the direct message with Alice, until a third person comes."""
    await world.open(rooms=[f"dm:{alice.user_id}"])
    await world.synced()
    room = server.invites(world.login.user_id, "!dm:fab.test", sender=alice.user_id, is_direct=True, encrypted=False)
    await eventually(lambda: _asked(server, "join"))
    await eventually(lambda: world.login.user_id in room.members)
    await world.synced()
    room.says(alice, "just us")
    await world.hears("just us")
    assert world.heard.facts[-1].is_direct  # type: ignore[union-attr]  # a message
    room.member("@eve:fab.test", "invite", sender=alice.user_id)
    room.says(alice, "not alone")
    await world.synced()
    assert world.heard.texts == ["just us"]


@pytest.mark.requirement("ROOM-2")
async def test_alias_is_pinned_to_the_room_that_it_named_first(
    world: EdgeWorld, server: FabricatedHomeserver, alice: FabricatedUser
) -> None:
    """An alias that points elsewhere later serves neither room until the operator confirms."""
    first = server.room("!first:fab.test", members=[alice.user_id, world.login.user_id])
    second = server.room("!second:fab.test", members=[alice.user_id, world.login.user_id])
    pointing = server.answers("GET", "*/directory/room/*", {"room_id": first.room_id, "servers": []})
    await world.open(rooms=["#ops:fab.test"])
    await world.synced()
    first.says(alice, "served")
    second.says(alice, "denied")
    await world.hears("served")
    pointing.end()
    server.answers("GET", "*/directory/room/*", {"room_id": second.room_id, "servers": []})
    await world.restart(rooms=["#ops:fab.test"])
    assert await world.edge.list_alias_troubles() == {"#ops:fab.test": "moved"}
    first.says(alice, "no longer")
    second.says(alice, "nor here")
    await world.synced()
    assert world.heard.texts == ["served"]


@pytest.mark.requirement("ROOM-2")
@pytest.mark.parametrize("others", [[], ["dm:@bob:fab.test"]], ids=["alone", "beside a direct message"])
async def test_alias_that_can_not_be_resolved_denies_and_is_asked_again(
    world: EdgeWorld, server: FabricatedHomeserver, alice: FabricatedUser, capsys: pytest.CaptureFixture[str], others: list[str]
) -> None:
    """Without an answer of the directory the room is denied; an invite waits until the alias is known. The log says all of it."""
    missing = server.answers("GET", "*/directory/room/*", {"errcode": "M_NOT_FOUND", "error": "no"}, status=404)
    await world.open(rooms=["#ops:fab.test", *others])
    await world.synced()
    server.invites(world.login.user_id, "!ops:fab.test", sender=alice.user_id)
    await world.synced()
    await eventually(lambda: len([one for one in server.asked if "/directory/" in one.path]) > 2)
    assert _asked(server, "join") + _asked(server, "leave") == []
    assert await world.edge.list_alias_troubles() == {"#ops:fab.test": "unresolved"}
    told = capsys.readouterr().out
    assert told.count("can't be resolved, and is tried again every minute") == 1
    assert "no room is served for it yet" in told
    missing.end()
    server.answers("GET", "*/directory/room/*", {"room_id": "!ops:fab.test", "servers": []})
    await eventually(lambda: _asked(server, "join"))
    await eventually(lambda: world.login.user_id in server.rooms["!ops:fab.test"].members)
    await world.synced()
    told = capsys.readouterr().out
    assert "an alias of matrix.rooms is resolved now" in told
    assert "joined a room" in told
    assert await world.edge.list_alias_troubles() == {}


@pytest.mark.requirement("ROOM-2", "ROOM-3")
async def test_invite_that_is_no_direct_message_is_refused_in_the_right_words(
    world: EdgeWorld, server: FabricatedHomeserver, alice: FabricatedUser, capsys: pytest.CaptureFixture[str]
) -> None:
    """Beside a dm: entry a room's invite is refused for not being listed, and not for something that is unknown."""
    await world.open(rooms=["dm:@alice:fab.test"])
    await world.synced()
    server.invites(world.login.user_id, "!other:fab.test", sender=alice.user_id)
    await eventually(lambda: _asked(server, "leave"))
    assert "the room is not on matrix.rooms" in capsys.readouterr().out


@pytest.mark.requirement("ROOM-6")
async def test_join_that_fails_is_tried_again_with_a_pause_also_after_a_restart(
    world: EdgeWorld, server: FabricatedHomeserver, alice: FabricatedUser
) -> None:
    """Some servers deliver an invite once: it is kept, and the join repeated."""
    failing = server.answers("POST", "*/join", {"errcode": "M_UNKNOWN", "error": "federation"}, status=404)
    await world.open()
    await world.synced()
    server.invites(world.login.user_id, "!new:fab.test", sender=alice.user_id)
    await eventually(lambda: _asked(server, "join"))
    await world.restart()
    failing.end()
    await eventually(lambda: server.rooms["!new:fab.test"].members.count(world.login.user_id))
    assert _asked(server, "leave") == []


@pytest.mark.requirement("ROOM-3")
@pytest.mark.parametrize("leave_denied", [False, True])
async def test_room_that_is_no_longer_allowed_is_left_alone_or_left(
    world: EdgeWorld, server: FabricatedHomeserver, alice: FabricatedUser, leave_denied: bool
) -> None:
    """Silence by default; the operator may have denied rooms left."""
    room = server.room("!old:fab.test", members=[alice.user_id, world.login.user_id])
    await world.open()
    await world.synced()
    await world.restart(rooms=[], leave_denied=leave_denied)
    room.says(alice, "hello?")
    await world.synced()
    if leave_denied:
        await eventually(lambda: _asked(server, "leave"))
    else:
        assert _asked(server, "leave") == []
    assert world.heard.texts == []


@pytest.mark.requirement("ROOM-10")
async def test_after_a_ban_a_new_invite_is_refused(world: EdgeWorld, server: FabricatedHomeserver, alice: FabricatedUser) -> None:
    """A kick needs a new invite; after a ban even that is refused."""
    room = server.room("!r:fab.test", members=[alice.user_id, world.login.user_id])
    await world.open()
    await world.synced()
    room.member(world.login.user_id, "leave", sender=alice.user_id)
    await world.synced()
    room.member(world.login.user_id, "invite", sender=alice.user_id)
    await eventually(lambda: len(_asked(server, "join")) == 1)
    await world.synced()
    room.member(world.login.user_id, "ban", sender=alice.user_id)
    await world.synced()
    room.member(world.login.user_id, "leave", sender=alice.user_id)
    room.member(world.login.user_id, "invite", sender=alice.user_id)
    await eventually(lambda: _asked(server, "leave"))
    assert len(_asked(server, "join")) == 1


@pytest.mark.requirement("ROOM-2")
async def test_room_of_version_12_is_served_by_its_id(world: EdgeWorld, server: FabricatedHomeserver, alice: FabricatedUser) -> None:
    """An id without a server part is an id like any other."""
    opaque = "!k2FLJr8ksA6GAJQ2pUZ6mAYrFxZ0VxNnmOnBv0N6wPs"
    room = server.room(opaque, members=[alice.user_id, world.login.user_id], version="12")
    await world.open(rooms=[opaque])
    await world.synced()
    room.says(alice, "hello")
    await world.hears("hello")
    await world.edge.gateway.deliver(world.delivery(opaque))
    assert len(server.sent) == 1


@pytest.mark.requirement("ROOM-5")
async def test_direct_message_is_what_m_direct_says_never_the_number_of_members(
    world: EdgeWorld, server: FabricatedHomeserver, alice: FabricatedUser
) -> None:
    """Two people in a room are no direct message by themselves."""
    pair = server.room("!pair:fab.test", members=[alice.user_id, world.login.user_id])
    direct = server.room("!direct:fab.test", members=[alice.user_id, world.login.user_id])
    server.account_data[world.login.user_id] = {"m.direct": {alice.user_id: [direct.room_id]}}
    await world.open()
    await world.synced()
    pair.says(alice, "pair")
    direct.says(alice, "direct")
    await world.hears("pair", "direct")
    assert [fact.is_direct for fact in world.heard.facts] == [False, True]  # type: ignore[union-attr]  # messages


@pytest.mark.requirement("ROOM-3")
async def test_what_came_before_a_room_was_denied_is_not_handed_over_until_it_is_allowed(
    world: EdgeWorld, server: FabricatedHomeserver, room: FabricatedRoom, alice: FabricatedUser
) -> None:
    """A message that a crash kept from the harness waits where it is while its room is denied; others are handed over."""
    other = server.room("!other:fab.test", members=[alice.user_id, BOT])
    await world.open()
    await world.synced()
    accept = world.heard.accept

    async def never(_facts: object) -> None:
        await asyncio.Event().wait()

    world.heard.accept = never  # type: ignore[method-assign,assignment]
    room.says(alice, "waits")
    other.says(alice, "elsewhere")
    await world.synced()
    await world.close()
    world.heard.accept = accept  # type: ignore[method-assign]
    await world.open(rooms=[other.room_id])
    await world.hears("elsewhere")
    assert not await asyncio.to_thread(world.edge.is_served, RoomId(room.room_id))
    await world.restart()
    await world.hears("elsewhere", "waits")
