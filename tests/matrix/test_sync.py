"""What a sync brings is on disk once, in order, whatever comes in between."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from hayate_matrix.core.facts import Edit, Membership, Message, Redaction, Skipped
from hayate_matrix.core.ids import RoomId
from hayate_matrix.matrix.keystore import KeyStore
from hayate_matrix.matrix.sync.apply import Applier
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from tests.support.edge import EdgeWorld
    from tests.support.fabricated import FabricatedHomeserver, FabricatedRoom
    from tests.support.fabricated.devices import FabricatedUser


def _more(content: dict[str, Any]) -> Any:
    return content


@pytest.mark.requirement("IN-1", "E2E-10")
async def test_encrypted_message_becomes_one_fact_with_its_clear_text(
    world: EdgeWorld, room: FabricatedRoom, alice: FabricatedUser
) -> None:
    """A message is handed over once, as what its sender wrote."""
    await world.open()
    await world.synced()
    event = room.says(alice, "hello", **_more({"m.mentions": {"user_ids": [world.login.user_id]}}))
    await world.hears("hello")
    fact = world.heard.facts[0]
    assert isinstance(fact, Message)
    assert (fact.event_id, fact.sender, fact.is_encrypted, fact.mentions) == (
        event["event_id"],
        alice.user_id,
        True,
        (world.login.user_id,),
    )


@pytest.mark.requirement("IN-3")
async def test_first_sync_is_history_and_later_ones_are_not(world: EdgeWorld, room: FabricatedRoom, alice: FabricatedUser) -> None:
    """What was said before the first start is never a request; what is said while the bot is down is."""
    room.says(alice, "before")
    await world.open()
    await world.synced()
    room.says(alice, "live")
    await world.hears("live")
    await world.close()
    room.says(alice, "meanwhile")
    await world.open()
    await world.hears("live", "meanwhile")


@pytest.mark.requirement("IN-3")
async def test_history_before_the_join_is_no_request(world: EdgeWorld, server: FabricatedHomeserver, alice: FabricatedUser) -> None:
    """In a room that the bot joins, only what follows its own join counts."""
    await world.open()
    await world.synced()
    other = server.room("!other:fab.test", members=[alice.user_id])
    other.says(alice, "before the join")
    other.member(world.login.user_id)
    other.says(alice, "after the join")
    await world.hears("after the join")


@pytest.mark.requirement("STO-2", "E2E-7")
async def test_rolled_back_answer_is_applied_again_with_its_keys(
    world: EdgeWorld, room: FabricatedRoom, alice: FabricatedUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transaction that fails after the keys were taken in loses neither key nor message, and sets nothing aside."""
    await world.open()
    await world.synced()
    real = Applier.finish
    failures: list[int] = []

    def fail_once(self: Applier, *arguments: Any) -> None:
        if not failures:
            failures.append(1)
            raise OSError("disk I/O error")
        real(self, *arguments)

    monkeypatch.setattr(Applier, "finish", fail_once)
    room.says(alice, "hello")
    await world.hears("hello")
    assert failures
    assert await world.count("quarantined") == 0


@pytest.mark.requirement("STO-2")
async def test_room_that_can_not_be_applied_spoils_no_other(
    world: EdgeWorld, server: FabricatedHomeserver, room: FabricatedRoom, alice: FabricatedUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One room that fails is set aside and reported; the rest of the answer, and later ones, get through."""
    bad = server.room("!bad:fab.test", members=[alice.user_id, world.login.user_id])
    await world.open()
    await world.synced()
    real = Applier.apply_joined

    def fail(self: Applier, part: Any, *arguments: Any) -> None:
        if part.room_id == bad.room_id:
            raise RuntimeError("a bug")
        real(self, part, *arguments)

    monkeypatch.setattr(Applier, "apply_joined", fail)
    await world.close()
    bad.says(alice, "lost?")
    room.says(alice, "fine")
    await world.open()
    await world.hears("fine")
    assert await world.count("quarantine.part") == 1


@pytest.mark.requirement("STO-2", "SEC-2")
@pytest.mark.parametrize(
    "part",
    [
        {"rooms": {"join": {"!room:fab.test": {"timeline": None, "summary": None, "unread_notifications": None}}}},
        {"rooms": {"join": {"!x:fab.test": {"timeline": {"prev_batch": None}}}}},
        {"rooms": {"join": {"!x:fab.test": None}, "leave": {"!opaque": {}}, "invite": {"!v12": {}}}},
        {
            "rooms": {
                "join": {"!room:fab.test": {"timeline": {"events": [None, 1, {"type": "m.room.message"}, {"type": 1, "content": []}]}}}
            }
        },
        {"rooms": {"join": {"!room:fab.test": {"state": {"events": [{"type": "m.room.member", "content": {}, "state_key": 3}]}}}}},
        {"to_device": {"events": [None, {"type": None}, {"type": "m.room.encrypted", "sender": "@x:y", "content": {}}]}},
        {"presence": {"events": [{"content": {"status_msg": None}}]}, "device_lists": None},
        {"account_data": {"events": [{"type": "m.direct", "content": {"@a:b": None, "@c:d": [1, None]}}]}},
    ],
)
async def test_malformed_part_of_an_answer_stops_nothing(
    world: EdgeWorld, server: FabricatedHomeserver, room: FabricatedRoom, alice: FabricatedUser, part: dict[str, Any]
) -> None:
    """Whatever shape a server gives a part of an answer, the next message is heard."""
    await world.open()
    await world.synced()
    server.adds_to_sync(part)
    await world.synced()
    room.says(alice, "still here")
    await world.hears("still here")


@pytest.mark.requirement("REL-3")
async def test_position_is_kept_when_the_first_sync_fails(
    world: EdgeWorld, server: FabricatedHomeserver, room: FabricatedRoom, alice: FabricatedUser
) -> None:
    """After a restart into an outage the sync goes on from the stored position, not from nothing."""
    await world.open()
    await world.synced()
    await world.close()
    room.says(alice, "while down")
    server.asked.clear()
    server.answers("GET", "*/sync", "<html>bad gateway</html>", status=502, times=2)
    await world.open()
    await world.hears("while down")
    assert all("since" in asked.query for asked in server.requests("GET", "*/sync"))


@pytest.mark.requirement("REL-3", "OUT-2")
@pytest.mark.parametrize(
    ("status", "body"),
    [
        (502, "<html>bad gateway</html>"),
        (200, "<html>login to the wifi</html>"),
        (403, "<html>forbidden by the CDN</html>"),
        (500, {"errcode": "M_UNKNOWN"}),
    ],
)
async def test_failing_homeserver_is_asked_at_most_twice_a_second(
    world: EdgeWorld, server: FabricatedHomeserver, room: FabricatedRoom, alice: FabricatedUser, status: int, body: Any
) -> None:
    """While no answer comes, the loop neither spins nor gives up, and nothing is lost."""
    await world.open()
    await world.synced()
    server.asked.clear()
    began = world.clock.monotonic()
    failing = server.answers("*", "*", body, status=status)
    room.says(alice, "in the storm")
    await eventually(lambda: world.clock.monotonic() - began > 120)
    failing.end()
    asked = len([one for one in server.asked if "sync" in one.path])
    await world.hears("in the storm")
    assert asked <= 2 * 120


@pytest.mark.requirement("IN-2", "IN-11")
async def test_gap_is_filled_oldest_first_before_newer_messages(world: EdgeWorld, room: FabricatedRoom, alice: FabricatedUser) -> None:
    """More messages than one answer shows are all heard, in the order in which they were sent."""
    await world.open()
    await world.synced()
    room.says(alice, "known")
    await world.hears("known")
    await world.close()
    texts = [f"m{number}" for number in range(170)]
    for text in texts:
        room.says(alice, text)
    await world.open()
    await world.hears("known", *texts)


@pytest.mark.requirement("IN-2")
async def test_gap_beyond_the_limit_is_counted_in_one_line(world: EdgeWorld, room: FabricatedRoom, alice: FabricatedUser) -> None:
    """What is more than the limit is skipped, and said so with its number."""
    await world.open()
    await world.synced()
    room.says(alice, "known")
    await world.hears("known")
    await world.close()
    for number in range(200):
        room.says(alice, f"m{number}")
    await world.open(backfill_limit=100)
    await eventually(lambda: "m199" in world.heard.texts)
    skipped = [fact for fact in world.heard.facts if isinstance(fact, Skipped)]
    assert [(fact.count, fact.reason) for fact in skipped] == [(50, "gap")]
    assert world.heard.texts == ["known", *(f"m{number}" for number in range(50, 200))]


@pytest.mark.requirement("IN-2")
async def test_stop_passes_a_gap_that_is_not_filled_yet(
    world: EdgeWorld, server: FabricatedHomeserver, room: FabricatedRoom, alice: FabricatedUser
) -> None:
    """`!stop` is heard at once; ordinary messages wait for what came before them."""
    await world.open()
    await world.synced()
    room.says(alice, "known")
    await world.hears("known")
    await world.close()
    for number in range(60):
        room.says(alice, f"m{number}")
    room.says(alice, "!stop")
    stuck = server.answers("GET", "*/messages", {"errcode": "M_UNKNOWN"}, status=500)
    await world.open()
    await eventually(lambda: "!stop" in world.heard.texts)
    assert world.heard.texts == ["known", "!stop"]
    stuck.end()
    await eventually(lambda: len(world.heard.texts) == 62)
    assert world.heard.texts[2:] == [f"m{number}" for number in range(60)]


@pytest.mark.requirement("IN-2")
async def test_gap_that_can_not_be_filled_lets_newer_messages_go_on_after_its_deadline(
    world: EdgeWorld, server: FabricatedHomeserver, room: FabricatedRoom, alice: FabricatedUser
) -> None:
    """A server that never pages does not silence a room for ever."""
    await world.open()
    await world.synced()
    room.says(alice, "known")
    await world.hears("known")
    await world.close()
    for number in range(60):
        room.says(alice, f"m{number}")
    server.answers("GET", "*/messages", {"errcode": "M_UNKNOWN"}, status=500)
    await world.open()
    await eventually(lambda: server.requests("GET", "*/messages"))
    world.clock.skip(11 * 60)
    await eventually(lambda: "m59" in world.heard.texts)


@pytest.mark.requirement("IN-3")
async def test_messages_older_than_the_backlog_age_are_counted_not_answered(
    world: EdgeWorld, server: FabricatedHomeserver, room: FabricatedRoom, alice: FabricatedUser
) -> None:
    """After an outage longer than the limit, old messages become one line; by the server's clock, never by this machine's."""
    await world.open(backlog_age_s=3600)
    await world.synced()
    await world.close()
    now_ms = int(world.clock.now().timestamp() * 1000)
    for number, age_s in enumerate((3 * 3600, 2 * 3600, 60)):
        alice_device = alice.device
        room.shares_key(alice_device)
        content = alice_device.encrypt(room.room_id, {"msgtype": "m.text", "body": f"m{number}"})
        room.has(alice.user_id, "m.room.encrypted", content, origin_server_ts=now_ms - age_s * 1000)
    world.edge = world.make_edge(backlog_age_s=3600)
    await world.edge.open()
    long_ago = str(now_ms - 5 * 3600 * 1000)
    await world.keystore.transaction("test.outage", lambda: world.keystore.write_meta("synced_at_server_ms", long_ago))
    await world.edge.start(world.heard)
    await eventually(lambda: world.heard.texts == ["m2"])
    assert [(fact.count, fact.reason) for fact in world.heard.facts if isinstance(fact, Skipped)] == [(2, "age")]


@pytest.mark.requirement("IN-3")
async def test_wrong_clock_of_this_machine_decides_nothing(world: EdgeWorld, room: FabricatedRoom, alice: FabricatedUser) -> None:
    """A machine whose clock is a year ahead answers what comes as ever."""
    world.clock.skip(365 * 86_400)
    await world.open(backlog_age_s=3600)
    await world.synced()
    room.says(alice, "hello")
    await world.hears("hello")


@pytest.mark.requirement("IN-10")
async def test_homeserver_that_was_rolled_back_gets_nothing_answered_twice(
    world: EdgeWorld, server: FabricatedHomeserver, room: FabricatedRoom, alice: FabricatedUser
) -> None:
    """A server restored from an older copy: what the bot knows stays known, what comes then is heard."""
    await world.open()
    await world.synced()
    room.says(alice, "kept")
    await world.hears("kept")
    place = server.position
    room.says(alice, "lost by the server")
    await world.hears("kept", "lost by the server")
    await world.close()
    server.rolls_back(place)
    room.says(alice, "after the restore")
    await world.open()
    await world.hears("kept", "lost by the server", "after the restore")


@pytest.mark.requirement("IN-10")
async def test_refused_position_makes_known_rooms_go_on_where_they_were(
    world: EdgeWorld, server: FabricatedHomeserver, room: FabricatedRoom, alice: FabricatedUser
) -> None:
    """A position that the server does not know any more costs no message and answers none twice."""
    await world.open()
    await world.synced()
    room.says(alice, "before")
    await world.hears("before")
    await world.close()
    room.says(alice, "meanwhile")

    def refuse(request: Any, _body: Any) -> Any:
        from aiohttp import web  # noqa: PLC0415

        return web.json_response({"errcode": "M_UNKNOWN_POS", "error": "?"}, status=400) if "since" in request.query else None

    refusing = server.handles("GET", "*/sync", refuse)
    await world.open()
    await eventually(lambda: len(world.heard.texts) == 2)
    refusing.end()
    room.says(alice, "later")
    await world.hears("before", "meanwhile", "later")


@pytest.mark.requirement("IN-1")
async def test_same_event_again_is_handed_over_once(
    world: EdgeWorld, server: FabricatedHomeserver, room: FabricatedRoom, alice: FabricatedUser
) -> None:
    """A duplicate in a later answer changes nothing."""
    await world.open()
    await world.synced()
    event = room.says(alice, "once")
    await world.hears("once")
    server.adds_to_sync({"rooms": {"join": {room.room_id: {"timeline": {"events": [event, event]}}}}})
    room.says(alice, "twice")
    await world.hears("once", "twice")


@pytest.mark.requirement("STO-3")
async def test_facts_of_a_dead_process_are_handed_over_by_the_next(
    world: EdgeWorld, room: FabricatedRoom, alice: FabricatedUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row that was not durable in the harness yet stays in the spool over a restart."""

    async def refuse(_facts: Any) -> None:
        raise OSError("the other database is gone")

    await world.open()
    await world.synced()
    monkeypatch.setattr(world.heard, "accept", refuse)
    room.says(alice, "keep me")
    with pytest.raises(OSError, match="other database"):
        await world.edge.watch()
    monkeypatch.undo()
    await world.restart()
    await world.hears("keep me")


@pytest.mark.requirement("STO-3", "IN-1")
async def test_facts_that_were_handed_over_just_before_a_kill_are_handed_over_again(
    world: EdgeWorld, room: FabricatedRoom, alice: FabricatedUser
) -> None:
    """Rows go with the next write; a process that dies before it hands them over once more, which the harness knows them by."""
    await world.open()
    await world.synced()
    room.says(alice, "one")
    await world.hears("one")
    await world.restart()
    await eventually(lambda: world.heard.handed == 2)
    room.says(alice, "two")
    await world.hears("one", "two")
    assert await world.count("intake") == 1


@pytest.mark.requirement("ROOM-10", "IN-1")
async def test_kick_reaches_the_harness_and_ends_work_for_the_room(
    world: EdgeWorld, server: FabricatedHomeserver, room: FabricatedRoom, alice: FabricatedUser
) -> None:
    """The kick is a fact, the room is left in the projection, and what is owed to it is held."""
    from hayate_matrix.errors import DeliveryHeld  # noqa: PLC0415

    await world.open()
    await world.synced()
    room.member(world.login.user_id, "leave", sender=alice.user_id)
    await eventually(lambda: [fact for fact in world.heard.facts if isinstance(fact, Membership) and fact.is_own])
    own = next(fact for fact in world.heard.facts if isinstance(fact, Membership) and fact.is_own)
    assert own.membership == "leave"
    with pytest.raises(DeliveryHeld):
        await world.edge.gateway.deliver(world.delivery(room.room_id))


@pytest.mark.requirement("IN-4", "IN-5")
async def test_edits_and_redactions_are_facts_of_their_own(world: EdgeWorld, room: FabricatedRoom, alice: FabricatedUser) -> None:
    """An edit carries what is new, not its fallback; a redaction names its target, also as room version 11 writes it."""
    await world.open()
    await world.synced()
    first = room.says(alice, "draft")
    await world.hears("draft")  # of a message that is removed before its sender's devices are known nothing is heard
    room.says(
        alice,
        "* final",
        **_more(
            {
                "m.new_content": {"msgtype": "m.text", "body": "final"},
                "m.relates_to": {"rel_type": "m.replace", "event_id": first["event_id"]},
            }
        ),
    )
    room.has(alice.user_id, "m.room.redaction", {"redacts": first["event_id"]})
    await eventually(lambda: len(world.heard.facts) == 3)
    _, edit, redaction = world.heard.facts
    assert isinstance(edit, Edit)
    assert (edit.target, edit.body) == (first["event_id"], "final")
    assert isinstance(redaction, Redaction)
    assert redaction.target == first["event_id"]


@pytest.mark.requirement("STO-11")
async def test_nothing_is_taken_from_the_server_when_the_disk_is_nearly_full(
    world: EdgeWorld, server: FabricatedHomeserver, room: FabricatedRoom, alice: FabricatedUser
) -> None:
    """With no room on the disk the position stands still; it goes on when there is room again."""
    is_free = [False]
    await world.open(may_take=lambda: is_free[0])
    room.says(alice, "hello")
    await eventually(lambda: server.requests("POST", "*/keys/query"))
    assert server.requests("GET", "*/sync") == []
    is_free[0] = True
    await eventually(lambda: server.requests("GET", "*/sync"))


@pytest.mark.requirement("ACC-2")
async def test_loop_that_hangs_is_started_again(world: EdgeWorld, room: FabricatedRoom, alice: FabricatedUser) -> None:
    """A receive loop that neither asks nor applies is noticed after three long polls and replaced."""
    import asyncio  # noqa: PLC0415

    await world.open()
    await world.synced()
    real = world.edge.sync._ask

    async def hang(_position: str | None) -> dict[str, Any]:
        world.edge.sync._ask = real  # type: ignore[method-assign]  # the fault is over once the loop is another one
        await asyncio.Event().wait()
        raise AssertionError

    world.edge.sync._ask = hang  # type: ignore[method-assign,assignment]
    room.says(alice, "first")
    await world.hears("first")
    world.clock.skip(200)
    room.says(alice, "second")
    await world.hears("first", "second", timeout_s=60)


async def test_keystore_is_one_connection_in_one_thread(world: EdgeWorld) -> None:
    """Rows are refused outside the edge's thread, so that no other part can slip in between."""
    await world.open()
    with pytest.raises(RuntimeError, match="edge's thread"):
        _ = world.keystore.db
    assert isinstance(world.keystore, KeyStore)
    assert await world.keystore.read(lambda: world.edge.rooms.find(RoomId("!none")).membership) == ""


@pytest.mark.requirement("ROOM-5")
async def test_display_name_is_known_also_while_the_homeserver_does_not_tell_it(
    world: EdgeWorld, server: FabricatedHomeserver, room: FabricatedRoom
) -> None:
    """What people call the bot is asked for at the start and kept for starts at which there is no answer."""
    telling = server.answers("GET", "*/profile/*/displayname", {"displayname": "Hayate Matrix"})
    await world.open()
    assert world.edge.display_names == ("Hayate Matrix",)
    telling.end()
    server.answers("GET", "*/profile/*/displayname", {"errcode": "M_NOT_FOUND", "error": "no"}, status=404)
    await world.restart()
    assert world.edge.display_names == ("Hayate Matrix",)
