"""One scenario for each finding about matrix-nio 0.26 that this code answers: it holds here, and it fails on bare matrix-nio.

The number in a scenario's name is the finding's. On bare nio each is expected to fail, strictly: a release that mends one shows here.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

from tests.regression.subjects import Bare, Ours, Subject
from tests.support.edge import ALICE, BOT
from tests.support.fabricated import FabricatedHomeserver, FabricatedRoom
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from hayate_matrix.demo.homeserver import Login
    from tests.support.fabricated.devices import FabricatedDevice, FabricatedUser

BOB = "@bob:fab.test"


class Scene:
    """A homeserver, Alice, an encrypted room, and one of the two bots."""

    def __init__(self, server: FabricatedHomeserver, home: Path, kind: type[Ours | Bare]) -> None:
        self.server = server
        self.login: Login = server.login(BOT)
        self.alice: FabricatedUser = server.user(ALICE)
        self.room: FabricatedRoom = server.room("!room:fab.test", members=[ALICE, BOT], encrypted=True)
        self.home = home
        self.is_started = False
        self.patience_s = kind.patience_s
        self.bot: Subject = kind(server, home, self.login)

    async def start(self) -> None:
        """Start the bot and bring it to where it hears Alice."""
        await self.bot.start()
        await eventually(lambda: self.server.one_time_keys.get((BOT, self.login.device_id)), timeout_s=self.patience_s)
        await eventually(lambda: any("since" in asked.query for asked in self.server.requests("GET", "*/sync")), timeout_s=self.patience_s)
        self.room.says(self.alice, "ready?")
        await self.hears("ready?")
        self.is_started = True

    async def restart(self, meanwhile: Callable[[], object] = lambda: None) -> None:
        """Stop the bot, let something happen, and start it again."""
        await self.bot.stop()
        meanwhile()
        await self.bot.start()

    async def hears(self, text: str) -> None:
        """Return when the bot heard it."""
        await eventually(lambda: text in self.bot.heard, timeout_s=self.patience_s, what=lambda: f"{text!r}; heard {self.bot.heard}")

    async def says(self, text: str) -> None:
        """Let the bot say something in the room, and fail where that does not end."""
        await asyncio.wait_for(self.bot.say(self.room.room_id, text), self.patience_s)

    def read_by(self, device: FabricatedDevice) -> list[str]:
        """Return what the device can read of the bot's messages, `?` for what it can't."""
        device.reads_to_device()
        texts = []
        for event in self.server.sent:
            try:
                texts.append(str(device.reads(event["content"])["content"]["body"]))
            except (KeyError, ValueError, AssertionError):
                texts.append("?")
        return texts

    def gives_key(self, device: FabricatedDevice, key: dict[str, Any]) -> None:
        """Let a device send the bot an `m.room_key` of any content."""
        event = device.encrypt_to_device(BOT, self.login.device_id, "m.room_key", key)
        self.server.sends_to_device(BOT, self.login.device_id, event)

    def sends_key(self, device: FabricatedDevice) -> None:
        """Let a device share its room key with the bot."""
        self.room.shares_key(device)

    def puts_encrypted(
        self, device: FabricatedDevice, sender: str, content: dict[str, Any], kind: str = "m.room.message", **payload: Any
    ) -> None:
        """Add an encrypted event of any sender, type and claims."""
        self.sends_key(device)
        self.room.has(sender, "m.room.encrypted", device.encrypt(self.room.room_id, content, kind, **payload))


def _text(body: str) -> dict[str, Any]:
    return {"msgtype": "m.text", "body": body}


# --- the receive loop -------------------------------------------------------------------------------------------------------


async def f_1_1_failure_of_the_programs_own_code_loses_no_message(scene: Scene) -> None:
    await scene.start()
    scene.bot.break_consumer()
    scene.room.says(scene.alice, "one")
    await asyncio.sleep(0.5)
    await scene.restart()
    await scene.hears("one")


async def f_1_3_error_answers_are_not_asked_for_in_a_tight_loop(scene: Scene) -> None:
    await scene.start()
    failing = scene.server.answers("GET", "*/sync", {"errcode": "M_UNKNOWN", "error": "x"}, status=500)
    scene.server.wakes()
    scene.room.says(scene.alice, "in the storm")
    began, before = time.monotonic(), failing.hits
    await asyncio.sleep(1.5)
    asked, seconds = failing.hits - before, (time.monotonic() - began) * scene.bot.speed
    failing.end()
    assert asked <= 2 * seconds + 2
    await scene.hears("in the storm")


async def f_1_4_position_survives_a_failed_first_sync(scene: Scene) -> None:
    if isinstance(scene.bot, Bare):
        scene.bot.keeps_position = True
    await scene.start()
    scene.server.asked.clear()
    await scene.restart(lambda: scene.server.answers("GET", "*/sync", "<html>bad gateway</html>", status=502, times=2))
    scene.room.says(scene.alice, "after it")
    await scene.hears("after it")
    assert all("since" in asked.query for asked in scene.server.requests("GET", "*/sync"))


async def f_1_5_truncated_answer_does_not_end_the_loop(scene: Scene) -> None:
    await scene.start()

    async def cut(request: Any, _body: Any) -> Any:
        from aiohttp import web  # noqa: PLC0415

        answer = web.StreamResponse(headers={"Content-Length": "1000", "Content-Type": "application/json"})
        await answer.prepare(request)
        await answer.write(b'{"next_batch": ')
        request.transport.close()
        return answer

    scene.server.handles("GET", "*/sync", cut, times=1)
    scene.server.adds_to_sync({})
    await asyncio.sleep(0.3)
    scene.room.says(scene.alice, "after it")
    await scene.hears("after it")


async def f_1_6_retry_after_header_is_obeyed(scene: Scene) -> None:
    await scene.start()
    limited = scene.server.answers(
        "PUT",
        "*/send/*",
        {"errcode": "M_LIMIT_EXCEEDED", "error": "slow", "retry_after_ms": "?"},
        status=429,
        headers={"Retry-After": "1"},
        times=1,
    )
    began = time.monotonic()
    await asyncio.wait_for(scene.bot.say(scene.room.room_id, "x"), 10)
    waited_s = (time.monotonic() - began) * scene.bot.speed
    assert limited.hits == 1
    assert scene.server.sent
    assert 1 <= waited_s < 4 * max(1.0, scene.bot.speed / 10)


async def f_1_7_gap_is_filled(scene: Scene) -> None:
    await scene.start()

    def talk() -> None:
        for number in range(120):
            scene.room.says(scene.alice, f"m{number}")

    await scene.restart(talk)
    await scene.hears("m119")
    assert [text for text in scene.bot.heard if text.startswith("m")] == [f"m{number}" for number in range(120)]


async def f_1_10_one_null_in_one_room_does_not_poison_the_whole_sync(scene: Scene) -> None:
    await scene.start()
    scene.server.adds_to_sync(
        {"rooms": {"join": {"!other:fab.test": {"timeline": {"events": [], "limited": False, "prev_batch": None}, "summary": None}}}}
    )
    scene.room.says(scene.alice, "after it")
    await scene.hears("after it")


async def f_1_12_error_page_is_no_success(scene: Scene) -> None:
    await scene.start()
    scene.server.answers("PUT", "*/sendToDevice/*", "<html>bad gateway</html>", status=502, times=1)
    await scene.says("hello")
    assert scene.read_by(scene.alice.device) == ["hello"]


# --- keys -------------------------------------------------------------------------------------------------------------------


async def f_2_1_olm_message_that_is_no_base64_stops_nothing(scene: Scene) -> None:
    await scene.start()
    keys = scene.server.device_keys[BOT][scene.login.device_id]["keys"]
    content = {
        "algorithm": "m.olm.v1.curve25519-aes-sha2",
        "sender_key": scene.alice.device.curve25519,
        "ciphertext": {keys[f"curve25519:{scene.login.device_id}"]: {"type": 0, "body": "%%%"}},
    }
    scene.server.sends_to_device(BOT, scene.login.device_id, {"type": "m.room.encrypted", "sender": ALICE, "content": content})
    scene.room.says(scene.alice, "after it")
    await scene.hears("after it")


async def f_2_1_malformed_room_key_stops_nothing(scene: Scene) -> None:
    await scene.start()
    content = {**scene.alice.device.room_key(scene.room.room_id), "session_key": "AAAA"}
    event = scene.alice.device.encrypt_to_device(BOT, scene.login.device_id, "m.room_key", content)
    scene.server.sends_to_device(BOT, scene.login.device_id, event)
    scene.room.says(scene.alice, "after it")
    await scene.hears("after it")


async def f_2_1_plaintext_that_is_no_object_stops_nothing(scene: Scene) -> None:
    await scene.start()
    scene.room.has(ALICE, "m.room.encrypted", scene.alice.device.encrypt_bytes(scene.room.room_id, b"[1]"))
    scene.room.says(scene.alice, "after it")
    await scene.hears("after it")


async def f_2_1_malformed_device_keeps_nobody_from_reading(scene: Scene) -> None:
    bob = scene.server.user(BOB)
    evil = bob.adds_device("EVIL")
    keys = evil.device_keys()
    scene.server.publishes(evil, {**keys, "keys": dict.fromkeys(keys["keys"], "short")})
    scene.room.member(BOB)
    await scene.start()
    await scene.says("hello")
    assert scene.read_by(scene.alice.device) == ["hello"]


async def f_2_2_crash_between_session_and_room_key_loses_no_key(scene: Scene) -> None:
    from nio.store import MatrixStore  # noqa: PLC0415

    from hayate_matrix.matrix.keystore.crypto import CryptoStore  # noqa: PLC0415

    await scene.start()
    scene.alice.device.new_room_key(scene.room.room_id)
    kinds = [kind for kind in (CryptoStore, MatrixStore) if "save_inbound_group_session" in kind.__dict__]
    real = {kind: kind.save_inbound_group_session for kind in kinds}

    def crash(*_: Any) -> None:
        for kind, method in real.items():
            kind.save_inbound_group_session = method  # type: ignore[method-assign]
        raise OSError("the process died here")

    for kind in kinds:
        kind.save_inbound_group_session = crash  # type: ignore[method-assign]
    scene.room.says(scene.alice, "under the new key")
    await asyncio.sleep(0.5)
    await scene.restart()
    await scene.hears("under the new key")


async def f_2_3_failed_share_is_repeated_and_keeps_the_token(scene: Scene) -> None:
    await scene.start()
    scene.server.answers("PUT", "*/sendToDevice/*", {"errcode": "M_UNKNOWN", "error": "x"}, status=500, times=1)
    await scene.says("one")
    await scene.says("two")
    assert scene.read_by(scene.alice.device) == ["one", "two"]


async def f_2_4_cancelled_claim_blocks_no_later_message(scene: Scene) -> None:
    await scene.start()

    async def hang(_request: Any, _body: Any) -> Any:
        await asyncio.sleep(3600)

    scene.server.user(BOB)
    scene.room.member(BOB)
    await _until_member(scene, BOB)
    hanging = scene.server.handles("POST", "*/keys/claim", hang)
    sending = asyncio.create_task(scene.bot.say(scene.room.room_id, "cancelled"))
    await eventually(lambda: hanging.hits, timeout_s=scene.patience_s)
    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)
    hanging.end()
    await scene.says("next")
    assert "next" in scene.read_by(scene.alice.device)


async def f_2_5_member_who_leaves_while_the_key_is_shared_can_not_read(scene: Scene) -> None:
    bob = scene.server.user(BOB)
    scene.room.member(BOB)
    await scene.start()
    left: list[int] = []

    async def leave(_request: Any, _body: Any) -> Any:
        if not left:
            left.append(1)
            scene.room.member(BOB, "leave")
            await asyncio.sleep(0.5)

    scene.server.handles("PUT", "*/sendToDevice/*", leave)
    await scene.says("secret")
    assert scene.read_by(bob.device) == ["?"]
    assert scene.read_by(scene.alice.device) == ["secret"]


async def f_2_6_newcomer_who_speaks_at_once_can_read_the_answer(scene: Scene) -> None:
    await scene.start()
    await scene.says("before")
    bob = scene.server.user(BOB)

    async def late(_request: Any, body: Any) -> Any:
        if BOB in body["device_keys"]:
            await asyncio.sleep(0.2)

    scene.server.handles("POST", "*/keys/query", late)
    scene.room.member(BOB)
    await _until_member(scene, BOB)
    await scene.says("welcome")
    assert scene.read_by(bob.device)[-1] == "welcome"


async def _until_member(scene: Scene, user_id: str) -> None:
    async def look() -> bool:
        return user_id in await scene.bot.members(scene.room.room_id)

    await eventually(look, timeout_s=scene.patience_s, every_s=0.001)


async def f_2_7_empty_pool_of_one_time_keys_is_filled(scene: Scene) -> None:
    await scene.start()
    await asyncio.sleep(0.7)  # what was claimed at the start is replaced
    scene.server.one_time_keys[BOT, scene.login.device_id].clear()
    scene.server.adds_to_sync({})
    await eventually(lambda: scene.server.one_time_keys[BOT, scene.login.device_id], timeout_s=scene.patience_s)


async def f_2_7_upload_whose_answer_was_lost_is_sent_again_as_it_was(scene: Scene) -> None:
    async def lose(_request: Any, _body: Any) -> Any:
        await asyncio.sleep(3600)

    losing = scene.server.handles("POST", "*/keys/upload", lose)
    starting = asyncio.create_task(scene.bot.start())
    await eventually(lambda: losing.hits, timeout_s=scene.patience_s)
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)
    await scene.bot.stop()
    losing.end()
    await scene.bot.start()
    await eventually(lambda: scene.server.one_time_keys.get((BOT, scene.login.device_id)), timeout_s=scene.patience_s)
    first, *_, last = (
        asked.body["one_time_keys"] for asked in scene.server.requests("POST", "*/keys/upload") if asked.body.get("device_keys")
    )
    assert first == last


async def f_2_7_fallback_key_is_uploaded(scene: Scene) -> None:
    await scene.start()
    assert scene.server.fallback_keys.get((BOT, scene.login.device_id))


async def f_2_8_message_whose_key_comes_later_is_heard(scene: Scene) -> None:
    await scene.start()
    device = scene.alice.adds_device("SECOND")
    key = device.room_key(scene.room.room_id)
    scene.room.has(ALICE, "m.room.encrypted", device.encrypt(scene.room.room_id, _text("late")))
    scene.room.says(scene.alice, "newer")
    await scene.hears("newer")
    scene.gives_key(device, key)
    await scene.hears("late")


async def f_2_9_key_that_begins_later_does_not_replace_an_earlier_one(scene: Scene) -> None:
    await scene.start()
    held = scene.alice.device.encrypt(scene.room.room_id, _text("held back"))
    scene.alice.device.encrypt(scene.room.room_id, _text("never sent"))
    key = scene.alice.device.room_key(scene.room.room_id)
    scene.server.sends_to_device(
        BOT, scene.login.device_id, scene.alice.device.encrypt_to_device(BOT, scene.login.device_id, "m.room_key", key)
    )
    scene.room.says(scene.alice, "between")
    await scene.hears("between")
    scene.room.has(ALICE, "m.room.encrypted", held)
    await scene.hears("held back")


async def f_2_10_device_called_like_the_bots_own_gets_keys(scene: Scene) -> None:
    same = scene.alice.adds_device(scene.login.device_id)
    await scene.start()
    await scene.says("hello")
    assert scene.read_by(same) == ["hello"]


async def f_2_11_rooms_rotation_settings_are_followed(scene: Scene) -> None:
    scene.room.has(ALICE, "m.room.encryption", {"algorithm": "m.megolm.v1.aes-sha2", "rotation_period_msgs": 1}, state_key="")
    await scene.start()
    await scene.says("one")
    await scene.says("two")
    assert len({event["content"]["session_id"] for event in scene.server.sent}) == 2


async def f_2_11_restart_changes_no_room_key(scene: Scene) -> None:
    await scene.start()
    await scene.says("one")
    await scene.restart()
    scene.room.says(scene.alice, "again")
    await scene.hears("again")
    await scene.says("two")
    assert len(scene.server.sent) == 2
    assert len({event["content"]["session_id"] for event in scene.server.sent}) == 1


async def f_2_12_room_key_of_one_person_speaks_for_no_other(scene: Scene) -> None:
    scene.server.user(BOB)
    scene.room.member(BOB)
    await scene.start()
    scene.puts_encrypted(scene.alice.device, BOB, _text("forged"))
    scene.room.says(scene.alice, "after it")
    await scene.hears("after it")
    assert "forged" not in scene.bot.heard


async def f_2_12_replay_is_refused_after_a_restart(scene: Scene) -> None:
    await scene.start()
    event = scene.room.says(scene.alice, "pay")
    await scene.hears("pay")
    await scene.restart(lambda: scene.room.has(ALICE, "m.room.encrypted", event["content"]))
    scene.room.says(scene.alice, "after it")
    await scene.hears("after it")
    assert scene.bot.heard.count("pay") == 1


async def f_3_6_one_damaged_room_key_does_not_stop_the_start(scene: Scene) -> None:
    import sqlite3  # noqa: PLC0415

    await scene.start()

    def damage() -> None:
        for file in scene.home.glob("*.db"):
            with sqlite3.connect(file) as db:
                db.execute("update megolminboundsessions set session = x'00'")
            db.close()
        scene.alice.device.new_room_key(scene.room.room_id)

    await scene.restart(damage)
    scene.room.says(scene.alice, "after it")
    await scene.hears("after it")


async def f_3_7_second_process_on_the_store_is_refused(scene: Scene) -> None:
    from hayate_matrix.app import own_home  # noqa: PLC0415
    from hayate_matrix.errors import HomeBusyError  # noqa: PLC0415

    await scene.start()
    if isinstance(scene.bot, Ours):
        # The lock is the program's, not the edge's: a second owner of the home never gets as far as its key store.
        with own_home(scene.home), pytest.raises(HomeBusyError):
            await asyncio.to_thread(_own_elsewhere, scene.home)
        return
    second = Bare(scene.server, scene.home, scene.login)
    await second.start()
    has_loaded = second.client.olm is not None
    await second.stop()
    assert not has_loaded


def _own_elsewhere(home: Path) -> None:
    import subprocess  # noqa: PLC0415
    import sys  # noqa: PLC0415

    from hayate_matrix.errors import HomeBusyError  # noqa: PLC0415

    code = "import sys; from pathlib import Path; from hayate_matrix.app import own_home; own_home(Path(sys.argv[1]))"
    done = subprocess.run([sys.executable, "-c", code, str(home)], check=False, capture_output=True, text=True)
    if "HomeBusyError" in done.stderr:
        raise HomeBusyError("refused")


# --- rooms ------------------------------------------------------------------------------------------------------------------


async def f_4_1_kick_ends_the_room(scene: Scene) -> None:
    await scene.start()
    scene.room.member(BOT, "leave", sender=ALICE)

    async def look() -> bool:
        return not await scene.bot.members(scene.room.room_id)

    await eventually(look, timeout_s=scene.patience_s)


async def f_4_2_creator_of_a_version_12_room_stands_above_all(scene: Scene) -> None:
    room = scene.server.room("!k2FLJr8ksA6GAJQ2pUZ6mAYrFxZ0VxNnmOnBv0N6wPs", members=[ALICE, BOT], version="12")
    await scene.start()
    power = await scene.bot.power(room.room_id, ALICE)
    assert power is not None
    assert power > 100


async def f_4_3_encrypted_state_event_changes_no_power(scene: Scene) -> None:
    bob = scene.server.user(BOB)
    scene.room.member(BOB)
    await scene.start()
    scene.puts_encrypted(bob.device, BOB, {"users": {BOB: 100}}, "m.room.power_levels", state_key="")
    scene.room.says(scene.alice, "after it")
    await scene.hears("after it")
    assert await scene.bot.power(scene.room.room_id, BOB) == 0


async def f_4_3_encrypted_member_event_removes_nobody(scene: Scene) -> None:
    bob = scene.server.user(BOB)
    scene.room.member(BOB)
    await scene.start()
    scene.puts_encrypted(bob.device, BOB, {"membership": "leave"}, "m.room.member", state_key=ALICE)
    scene.room.says(scene.alice, "after it")
    await scene.hears("after it")
    assert ALICE in await scene.bot.members(scene.room.room_id)


async def f_4_4_demotion_by_removal_counts(scene: Scene) -> None:
    levels = {"users": {ALICE: 100, BOB: 100}, "users_default": 0}
    scene.room.has(ALICE, "m.room.power_levels", levels, state_key="")
    await scene.start()
    assert await scene.bot.power(scene.room.room_id, BOB) == 100
    scene.room.has(ALICE, "m.room.power_levels", {"users": {ALICE: 100}, "users_default": 0}, state_key="")
    scene.room.says(scene.alice, "after it")
    await scene.hears("after it")
    assert await scene.bot.power(scene.room.room_id, BOB) == 0


async def f_4_10_redacted_encryption_event_still_means_encrypted(scene: Scene) -> None:
    event = scene.room.state["m.room.encryption", ""]
    event["content"] = {}
    event["unsigned"] = {
        "redacted_because": {"sender": ALICE, "event_id": "$r", "origin_server_ts": 1, "type": "m.room.redaction", "content": {}}
    }
    await scene.bot.start()
    await _until_member(scene, ALICE)
    await scene.says("secret")
    assert [sent["type"] for sent in scene.server.sent] == ["m.room.encrypted"]


# --- sending ----------------------------------------------------------------------------------------------------------------


async def f_5_6_long_message_arrives(scene: Scene) -> None:
    await scene.start()

    def refuse(_request: Any, body: Any) -> Any:
        import json  # noqa: PLC0415

        from aiohttp import web  # noqa: PLC0415

        if len(json.dumps(body)) > 65_000:
            return web.json_response({"errcode": "M_TOO_LARGE", "error": "too large"}, status=413)
        return None

    scene.server.handles("PUT", "*/send/*", refuse)
    await scene.says("\n\n".join(f"Paragraph {number}: " + "word " * 150 for number in range(80)))
    assert "Paragraph 79" in "".join(scene.read_by(scene.alice.device))


async def f_5_9_unsigned_data_of_a_payload_is_dropped(scene: Scene) -> None:
    await scene.start()
    because = {"sender": "@admin:fab.test", "event_id": "$r", "origin_server_ts": 1, "type": "m.room.redaction", "content": {}}
    scene.puts_encrypted(scene.alice.device, ALICE, _text("not redacted"), unsigned={"redacted_because": because})
    await scene.hears("not redacted")


async def f_6_2_messages_leave_in_the_order_they_were_given(scene: Scene) -> None:
    await scene.start()
    await scene.says("warm")
    sizes = iter([0.2, 0.15, 0.1, 0.05, 0.0])

    async def slower_first(_request: Any, _body: Any) -> Any:
        await asyncio.sleep(next(sizes, 0.0))

    scene.server.handles("PUT", "*/send/*", slower_first)
    await asyncio.gather(*(scene.bot.say(scene.room.room_id, f"m{number}") for number in range(5)))
    assert scene.read_by(scene.alice.device)[1:] == [f"m{number}" for number in range(5)]


async def f_6_3_flag_that_was_not_saved_lets_nothing_leave_in_clear(scene: Scene) -> None:
    await scene.start()
    other = scene.server.room("!other:fab.test", members=[ALICE, BOT], encrypted=True)
    scene.bot.break_consumer()
    other.says(scene.alice.user_id, "hi")
    scene.room.says(scene.alice, "breaks the consumer")
    await asyncio.sleep(0.5)
    if isinstance(scene.bot, Bare):
        scene.bot.asks_full_state = False
    await scene.restart()
    other.says(scene.alice.user_id, "still there?")
    await asyncio.sleep(0.5)
    await asyncio.wait_for(scene.bot.say(other.room_id, "secret"), scene.patience_s)
    assert [event["type"] for event in scene.server.sent] == ["m.room.encrypted"]


FINDINGS_OF_THE_START = {
    "2_1_malformed_device_keeps_nobody_from_reading",
    "2_7_upload_whose_answer_was_lost_is_sent_again_as_it_was",
    "4_10_redacted_encryption_event_still_means_encrypted",
}
"""Here bare nio does not get as far as hearing its first message; the scenarios say so themselves."""
SCENARIOS = {name.removeprefix("f_"): scenario for name, scenario in list(globals().items()) if name.startswith("f_")}


@pytest_asyncio.fixture
async def make_scene(tmp_path: Path) -> AsyncIterator[Callable[[type[Ours | Bare]], Awaitable[Scene]]]:
    """Make the scene for one of the two bots; the bot is stopped at the end."""
    scenes: list[Scene] = []
    async with FabricatedHomeserver() as server:

        async def make(kind: type[Ours | Bare]) -> Scene:
            scene = Scene(server, tmp_path, kind)
            scenes.append(scene)
            return scene

        yield make
        for scene in scenes:
            await scene.bot.stop()


@pytest.mark.requirement("REL-5")
@pytest.mark.parametrize("name", SCENARIOS)
async def test_finding_is_answered_here(make_scene: Callable[[type[Ours | Bare]], Awaitable[Scene]], name: str) -> None:
    """The scenario of the finding holds."""
    await SCENARIOS[name](await make_scene(Ours))


@pytest.mark.requirement("REL-5")
@pytest.mark.parametrize("name", SCENARIOS)
async def test_finding_is_real_on_bare_nio(make_scene: Callable[[type[Ours | Bare]], Awaitable[Scene]], name: str) -> None:
    """The same scenario fails on bare matrix-nio: the test above could fail."""
    scene = await make_scene(Bare)
    with pytest.raises((Exception, asyncio.CancelledError)):
        await asyncio.wait_for(SCENARIOS[name](scene), 25)
    # It failed at the finding, not before: the bare bot had started and heard its first message.
    assert scene.is_started or name in FINDINGS_OF_THE_START


async def test_bare_bot_hears_and_answers(make_scene: Callable[[type[Ours | Bare]], Awaitable[Scene]]) -> None:
    """The peer is a working bot: what fails above fails for the reason that is named."""
    scene = await make_scene(Bare)
    await scene.start()
    await scene.says("hello")
    assert scene.read_by(scene.alice.device) == ["hello"]
