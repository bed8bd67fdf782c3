"""`hayate-matrix doctor`: what it finds, and what it says to do."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import web

from hayate_matrix.app import own_home
from hayate_matrix.cli.doctor import Finding, check_bot
from hayate_matrix.core.allowlist import describe_rooms
from hayate_matrix.core.ids import DeviceId, UserId
from hayate_matrix.core.status import Status, Trouble, dump_status
from hayate_matrix.matrix.account import Credentials, save_credentials
from hayate_matrix.store.database import open_database
from hayate_matrix.store.sealing import Sealer, load_key

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hayate_matrix.store.database.locks import Ownership
    from tests.cli.conftest import Call
    from tests.support.fabricated import FabricatedHomeserver

BOT = "@bot:fab.test"
NOW = dt.datetime(2026, 6, 1, 12, tzinfo=dt.UTC)


@pytest.fixture
def owned(home: Path) -> Iterator[Ownership]:
    """A home with an owner, as a running bot is one."""
    with own_home(home) as ownership:
        yield ownership


@pytest.fixture
def well(server: FabricatedHomeserver, home: Path, owned: Ownership) -> FabricatedHomeserver:
    """A bot with which everything is well: logged in, its device signed by its identity, its store and key made, and its home owned."""
    server.user(BOT)
    login = server.login(BOT, "DEVICE0")
    credentials = Credentials(homeserver=server.url, user_id=UserId(BOT), device_id=DeviceId("DEVICE0"), access_token=login.access_token)
    save_credentials(home / "secrets", credentials)
    load_key(home / "secrets")
    open_database(home / "hayate.db").close()
    write_status(home, dt.datetime.now(dt.UTC))
    return server


def write_status(home: Path, now: dt.datetime, **more: Any) -> None:
    fields: dict[str, Any] = {"pid": 4242, "started_at": now, "written_at": now, "last_sync_at": now}
    path = home / "status.json"
    path.write_text(dump_status(Status(**{**fields, **more})))
    path.chmod(0o600)


def find(out: str, what: str) -> str:
    """Return the line of the finding `what`, and its remedy if it has one."""
    lines = out.splitlines()
    for number, line in enumerate(lines):
        if line[7:].startswith(f"{what} "):
            remedy = lines[number + 1] if number + 1 < len(lines) and lines[number + 1].startswith(" " * 20) else ""
            return f"{line} {remedy.strip()}"
    message = f"no finding {what!r} in:\n{out}"
    raise AssertionError(message)


@pytest.mark.requirement("NEW-2")
def test_where_all_is_well_nothing_is_wrong(call: Call, well: FabricatedHomeserver) -> None:
    """Every check passes and the exit code is 0."""
    outcome = call("doctor")
    assert outcome.code == 0, outcome
    assert "Nothing is wrong." in outcome.out
    for what in ("settings", "home", "disk", "sealing", "store", "outbox", "bot", "allowlist", "people", "homeserver", "account", "device"):
        assert find(outcome.out, what).startswith("ok"), what
    assert "is signed by the account's identity" in find(outcome.out, "device")


@pytest.mark.requirement("NEW-2")
def test_doctor_changes_nothing_and_needs_no_lock(call: Call, well: FabricatedHomeserver, home: Path) -> None:
    """It runs beside the owner of the home, and what is there is as it was."""

    def look() -> dict[str, bytes]:
        return {str(path): path.read_bytes() for path in sorted(home.rglob("*")) if path.is_file()}

    before = look()
    assert call("doctor").code == 0
    assert look() == before
    assert {one.method for one in well.asked} <= {"GET", "POST"}
    assert [one.path for one in well.asked if one.method == "POST"] == ["/_matrix/client/v3/keys/query"]


@pytest.mark.requirement("NEW-2")
def test_an_empty_machine_is_told_what_to_do_first(call: Call, home: Path) -> None:
    """Before the first login doctor says how to log in, and makes nothing."""
    outcome = call("doctor")
    assert outcome.code == 1
    assert "hayate-matrix login" in find(outcome.out, "home")
    assert "hayate-matrix login" in find(outcome.out, "account")
    assert not home.exists()
    home.touch()
    assert "is no folder" in find(call("doctor").out, "home")


@pytest.mark.requirement("REL-3", "NEW-2")
@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ({"body": "<html>Bad gateway</html>", "status": 502}, "502"),
        ({"body": "<html>Welcome</html>", "status": 200}, "no JSON"),
        ({"body": {"errcode": "M_LIMIT_EXCEEDED", "retry_after_ms": 2000}, "status": 429}, "limits how often it is asked"),
        ({"body": {"errcode": "M_UNKNOWN", "error": "x"}, "status": 500}, "500"),
        ({"body": {"versions": ["r0.6.1", "v1.2"]}, "status": 200}, "v1.11 is needed"),
    ],
    ids=["502", "HTML with 200", "429", "500", "too old"],
)
def test_a_homeserver_in_trouble_is_told_by_its_trouble(call: Call, well: FabricatedHomeserver, answer: dict[str, Any], told: str) -> None:
    """Whatever stands where a homeserver should be, doctor says what it was and what to do, with a few requests."""
    well.answers("*", "*", **answer)
    well.asked.clear()
    outcome = call("doctor")
    assert outcome.code == 1
    text = find(outcome.out, "homeserver")
    assert text.startswith("fault")
    assert told in text
    assert len(well.asked) == 1


@pytest.mark.requirement("REL-3", "NEW-2")
def test_a_homeserver_that_hangs_or_is_gone_is_told(
    call: Call, well: FabricatedHomeserver, monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    """Doctor itself never hangs."""
    monkeypatch.setattr("hayate_matrix.cli.remote._PATIENCE_S", 0.2)

    async def hang(_request: web.Request, _body: Any) -> None:
        await asyncio.sleep(5)

    monkeypatch.setattr("hayate_matrix.cli.progress._SILENCE_S", 0.05)
    well.handles("GET", "*/versions", hang)
    outcome = call("doctor")
    assert f"{well.url} did not answer within 0.2 s. See whether it runs" in find(outcome.out, "homeserver")
    assert f"waiting for {well.url} (" in outcome.err
    path = home / "secrets" / "credentials.json"
    kept = json.loads(path.read_text())
    path.write_text(json.dumps({**kept, "homeserver": "http://127.0.0.1:1"}))
    text = find(call("doctor").out, "homeserver")
    assert "http://127.0.0.1:1 can't be reached: " in text
    assert "its address is right" in text


@pytest.mark.requirement("ACC-1", "NEW-2")
def test_a_token_that_is_refused_or_anothers_is_told(call: Call, well: FabricatedHomeserver) -> None:
    """The account's check compares user and device."""
    refused = well.answers("GET", "*/whoami", {"errcode": "M_UNKNOWN_TOKEN", "error": ""}, status=401)
    assert "M_UNKNOWN_TOKEN" in find(call("doctor").out, "account")
    refused.end()
    well.answers("GET", "*/whoami", {"user_id": BOT, "device_id": "OTHER"})
    outcome = call("doctor")
    assert outcome.code == 1
    assert "OTHER" in find(outcome.out, "account")


@pytest.mark.requirement("ACC-1", "NEW-2")
def test_a_device_that_was_logged_out_is_no_trouble_of_the_homeserver(call: Call, well: FabricatedHomeserver) -> None:
    """Servers refuse a dead token everywhere: what they say without one is asked without one, and the account's line says what to do."""

    async def refuse(request: web.Request, _body: Any) -> Any:
        return web.json_response({"errcode": "M_UNKNOWN_TOKEN"}, status=401) if "Authorization" in request.headers else None

    well.handles("*", "*", refuse)
    outcome = call("doctor")
    assert find(outcome.out, "homeserver").startswith("ok")
    assert "hayate-matrix login" in find(outcome.out, "account")


@pytest.mark.requirement("E2E-1", "NEW-2")
@pytest.mark.parametrize(
    ("spoil", "level", "told"),
    [
        ("no keys", "note", "no encryption keys"),
        ("no identity", "fault", "no cross-signing identity"),
        ("unsigned", "fault", "is not signed"),
        ("signed by another", "fault", "is not signed"),
    ],
)
def test_a_device_that_strict_clients_shun_is_told(call: Call, well: FabricatedHomeserver, spoil: str, level: str, told: str) -> None:
    """The signature is checked as a strict client checks it: the whole chain, with cryptography."""
    keys = well.device_keys[BOT]["DEVICE0"]
    if spoil == "no keys":
        del well.device_keys[BOT]
    elif spoil == "no identity":
        del well.cross_signing[BOT]
    elif spoil == "unsigned":
        keys["signatures"][BOT] = {"ed25519:DEVICE0": keys["signatures"][BOT]["ed25519:DEVICE0"]}
    else:
        well.cross_signing[BOT] = well.user("@mallory:fab.test").identity.published()  # type: ignore[union-attr]
    text = find(call("doctor").out, "device")
    assert text.startswith(level)
    assert told in text


@pytest.mark.requirement("ROOM-1")
@pytest.mark.parametrize(
    ("options", "told"),
    [
        ([], "matrix.rooms is unset: every room is served"),
        (["--rooms", ""], "matrix.rooms is an empty list: all rooms are denied (--rooms)"),
        (["--rooms", "#ops:b.org,!x:b.org"], "matrix.rooms is a list of 2: #ops:b.org, !x:b.org (--rooms)"),
    ],
)
def test_doctor_says_which_allowlist_is_in_force(call: Call, well: FabricatedHomeserver, home: Path, options: list[str], told: str) -> None:
    """Unset, empty and a list are told apart, with the place that says so; a bot that was started with another one is a fault."""
    outcome = call("doctor", *options)
    assert told in find(outcome.out, "allowlist")
    assert outcome.code == 0
    others = tuple(f"!other{number}:b.org" for number in range(5))
    write_status(home, dt.datetime.now(dt.UTC), allowlist=describe_rooms(others), rooms=list(others))
    outcome = call("doctor", *options)
    assert outcome.code == 1
    assert "was given a list of 5: !other0:b.org, " in find(outcome.out, "allowlist")


@pytest.mark.requirement("ROOM-1", "NEW-2")
@pytest.mark.parametrize(
    ("running", "options", "advises_a_start"),
    [
        (("#ops:b.org",), [], False),
        (("#ops:b.org",), ["--rooms", "#ops:b.org,#more:b.org"], False),
        (("#ops:b.org",), ["--rooms", "#more:b.org"], False),
        ((), ["--rooms", "#ops:b.org"], False),
        (("#ops:b.org", "#more:b.org"), ["--rooms", "#ops:b.org"], True),
        (("#ops:b.org",), ["--rooms", ""], True),
        (None, ["--rooms", "#ops:b.org"], True),
    ],
)
def test_doctor_never_advises_a_start_that_opens_rooms(
    call: Call, well: FabricatedHomeserver, home: Path, running: tuple[str, ...] | None, options: list[str], *, advises_a_start: bool
) -> None:
    """A bot that was given a list on its command line is not to be started again without one, on the word of a doctor that lacks it."""
    listed = None if running is None else list(running)
    write_status(home, dt.datetime.now(dt.UTC), allowlist=describe_rooms(running), rooms=listed)
    told = find(call("doctor", *options).out, "allowlist")
    assert told.startswith("fault")
    assert ("start it again" in told.lower()) == advises_a_start
    assert ("give doctor the same --rooms" in told and f"{home / 'hayate.toml'}" in told) == (not advises_a_start)


def test_the_same_rooms_in_another_order_are_the_same_list(call: Call, well: FabricatedHomeserver, home: Path) -> None:
    """Two lists of the same rooms are one; two of the same length are not."""
    write_status(home, dt.datetime.now(dt.UTC), allowlist=describe_rooms(("#a:b.org", "#c:b.org")), rooms=["#a:b.org", "#c:b.org"])
    assert find(call("doctor", "--rooms", "#c:b.org,#a:b.org").out, "allowlist").startswith("ok")
    assert find(call("doctor", "--rooms", "#c:b.org,#d:b.org").out, "allowlist").startswith("fault")


@pytest.mark.requirement("ROOM-4")
@pytest.mark.parametrize(
    ("options", "told"),
    [
        ([], "may speak: anyone in a served room; may invite: the accounts of its own server"),
        (["--set", "matrix.people="], "may speak: nobody; may invite: nobody"),
        (["--set", "matrix.people=@a:b.org", "--set", "matrix.inviters=*:b.org"], "may speak: @a:b.org; may invite: *:b.org"),
    ],
)
def test_doctor_says_who_may_speak_and_invite(call: Call, well: FabricatedHomeserver, options: list[str], told: str) -> None:
    """People and inviters as they are in force."""
    assert told in find(call("doctor", *options).out, "people")


@pytest.mark.requirement("STO-1", "SEC-3")
def test_files_that_others_can_read_are_told(call: Call, well: FabricatedHomeserver, home: Path) -> None:
    """Permissions of the home, the key and the credentials are looked at."""
    (home / "hayate.db").chmod(0o644)
    text = find(call("doctor").out, "home")
    assert text.startswith("fault")
    assert "hayate.db" in text
    assert "chmod -R go=" in text
    assert "more" not in text
    (home / "secrets" / "store.key").chmod(0o644)
    outcome = call("doctor")
    assert find(outcome.out, "sealing").startswith("fault")
    assert "and 1 more" in find(outcome.out, "home")


@pytest.mark.requirement("STO-8", "NEW-2")
def test_a_database_that_was_sealed_with_another_key_is_told(call: Call, well: FabricatedHomeserver, home: Path) -> None:
    """A key that is there is not enough: it has to be the one of the database; doctor makes none."""
    path = home / "secrets" / "store.key"
    key = path.read_text()
    open_database(home / "hayate.db", key_id=Sealer(load_key(home / "secrets")).key_id).close()
    assert find(call("doctor").out, "store").startswith("ok")
    path.unlink()
    outcome = call("doctor")
    text = find(outcome.out, "store")
    assert text.startswith("fault")
    assert "the key here is missing" in text
    text = find(outcome.out, "sealing")
    assert text.startswith("fault")
    assert "is gone" in text
    assert not path.exists()
    path.touch(mode=0o600)
    path.write_text(key[::-1].strip())
    outcome = call("doctor")
    assert outcome.code == 1
    assert "Put the store.key back" in find(outcome.out, "store")


@pytest.mark.requirement("STO-8")
def test_texts_that_are_stored_readable_are_told(call: Call, well: FabricatedHomeserver) -> None:
    """Whoever turned sealing off is reminded of it."""
    text = find(call("doctor", "--set", "store.seal=false").out, "sealing")
    assert text.startswith("note")
    assert "stored readable" in text


@pytest.mark.requirement("STO-11", "NEW-2")
def test_a_disk_that_is_low_is_told(call: Call, well: FabricatedHomeserver) -> None:
    """The space that is left is compared with the setting."""
    text = find(call("doctor", "--set", "store.low_water_bytes=1099511627776").out, "disk")
    assert text.startswith("fault")
    assert "store.low_water_bytes" in text
    assert " MiB free; 1,048,576 MiB should be, and below a quarter" in text


@pytest.mark.requirement("STO-7", "REL-4")
def test_a_damaged_database_is_told_and_left_alone(call: Call, well: FabricatedHomeserver, home: Path) -> None:
    """Doctor names the database and writes nothing to it."""
    path = home / "hayate.db"
    damaged = b"SQLite format 3\x00" + b"\xff" * 8192
    path.write_bytes(damaged)
    outcome = call("doctor")
    assert outcome.code == 1
    assert "hayate.db" in find(outcome.out, "store")
    assert path.read_bytes() == damaged


@pytest.mark.requirement("NEW-2")
def test_a_database_server_that_is_down_is_told_in_one_line(call: Call, well: FabricatedHomeserver) -> None:
    """What the database's library says over several lines stands in one."""
    text = find(call("doctor", "--set", "store.url=postgresql://bot@127.0.0.1:1/x").out, "store")
    assert text.startswith("fault")
    assert "Connection refused" in text
    assert "open to this user" in text
    assert "\t" not in text


@pytest.mark.requirement("OUT-1", "ROOM-3")
def test_deliveries_that_are_held_or_uncertain_are_shown(call: Call, well: FabricatedHomeserver, home: Path) -> None:
    """What waits for the operator is counted from the database itself."""
    import sqlite3  # noqa: PLC0415  only this test writes rows by hand

    with sqlite3.connect(home / "hayate.db") as connection:
        connection.execute(
            "INSERT INTO conversations (id, room_id, made_at_ms, is_present, is_paused, streak) VALUES ('c', '!r:b.org', 0, 1, 0, 0)"
        )
        for number, state in enumerate(("held", "held", "uncertain", "pending", "sent")):
            connection.execute(
                "INSERT INTO outbox (id, conversation_id, kind, state, epoch, made_at_ms, text) VALUES (?, 'c', 'reply', ?, 0, 0, x'00')",
                (f"d{number}", state),
            )
    connection.close()
    outcome = call("doctor")
    assert outcome.code == 1
    assert "1 owed, 2 held, 1 uncertain" in find(outcome.out, "outbox")


def bot_findings(home: Path, **more: Any) -> list[Finding]:
    with own_home(home):
        write_status(home, NOW, **more)
        return list(check_bot(home, NOW + dt.timedelta(seconds=2)))


@pytest.mark.requirement("ACC-2", "NEW-2")
@pytest.mark.parametrize(
    ("more", "level", "told"),
    [
        ({}, "ok", "runs as process 4242, last sync 2 s ago"),
        ({"is_limited": True}, "ok", "limited by the homeserver"),
        ({"is_stopped": True}, "note", "is not running"),
        (
            {"is_stopped": True, "ended_by": Trouble(code="account", text="The device was logged out.", at=NOW)},
            "fault",
            "(account): The device was logged out.",
        ),
        ({"last_sync_at": None}, "ok", "no sync yet"),
        ({"last_sync_at": None, "started_at": NOW - dt.timedelta(minutes=5)}, "fault", "no sync yet"),
        ({"last_sync_at": NOW - dt.timedelta(seconds=95)}, "fault", "last sync 97 s ago"),
        ({"written_at": NOW - dt.timedelta(minutes=5)}, "fault", "hangs: it last wrote its status 5 min ago"),
        (
            {"failures": 3, "trouble": Trouble(code="homeserver-down", text="sync was answered with status 502", at=NOW)},
            "fault",
            "(3 times so far), last sync 2 s ago: homeserver-down: sync was answered with status 502",
        ),
        ({"failures": 1, "trouble": Trouble(code="rate-limited", text="x", at=NOW)}, "fault", "(1 time so far)"),
        ({"failures": 1, "trouble": Trouble(code="rate-limited", text="x", at=NOW)}, "fault", "rate-limited"),
    ],
)
def test_the_state_of_the_bot_is_told_from_what_it_last_wrote(home: Path, more: dict[str, Any], level: str, told: str) -> None:
    """Running, stopped, hanging, starting, overdue and in trouble are told apart."""
    first = bot_findings(home, **more)[0]
    assert (first.what, first.level) == ("bot", level)
    assert told in first.text
    assert first.remedy or level == "ok" or more.get("is_stopped")


@pytest.mark.requirement("NEW-2", "STO-6")
def test_a_bot_that_was_killed_is_told_at_once(call: Call, well: FabricatedHomeserver, owned: Ownership) -> None:
    """What it last wrote is fresh and says that it runs; that nobody owns the home any more says that it doesn't."""
    assert find(call("doctor").out, "bot").startswith("ok     bot          runs as process")
    owned.release()  # as the kernel does for a process that is killed
    outcome = call("doctor", "--rooms", "")
    assert outcome.code == 1
    assert "process 4242 was killed" in find(outcome.out, "bot")
    assert "hayate-matrix run" in find(outcome.out, "bot")
    assert find(outcome.out, "allowlist").startswith("note")


@pytest.mark.requirement("E2E-6", "E2E-4")
def test_devices_without_keys_and_unreadable_messages_are_counted(home: Path) -> None:
    """What the running bot counted is shown with what people can do."""
    counts = {"withheld_devices": 3, "undecryptable": 3, "unsigned": 1, "quarantined": 1, "intake": 1, "forged": 7, "none": 0}
    found = {one.what: one for one in bot_findings(home, counts=counts, rooms_denied=4, unsigned_senders=["@ann:b.org"])}
    assert found["devices"].text.startswith("3 get no room keys")
    assert 'matrix.devices = "all"' in found["devices"].remedy
    assert found["unread"].text.startswith("2 messages could not be decrypted")
    assert found["quarantine"].text.startswith("1 malformed")
    assert "4 denied" in found["rooms"].text
    assert found["intake"].text == "1 event received and not yet taken up"
    assert found["counted"].text.endswith("report of a fault: forged 7")
    assert max(map(len, found)) <= len("unverified ")


@pytest.mark.requirement("E2E-6", "NEW-2")
def test_whoever_is_not_heard_for_want_of_a_signature_is_named(home: Path) -> None:
    """A message from a session that its owner has not verified has a line of its own: whose it is, and what makes it heard."""
    counts = {"undecryptable": 2, "unsigned": 2, "unread.unsigned-device": 5}
    found = {one.what: one for one in bot_findings(home, counts=counts, unsigned_senders=["@ann:b.org", "@bob:b.org"])}
    assert found["unverified"].level == "note"
    assert found["unverified"].text.startswith("2 messages not heard: @ann:b.org, @bob:b.org wrote")
    assert "verifies that session" in found["unverified"].remedy
    assert 'matrix.devices = "all"' in found["unverified"].remedy
    assert "unread" not in found


@pytest.mark.requirement("ROOM-2", "NEW-2")
def test_an_alias_that_serves_no_room_is_told(home: Path) -> None:
    """One that was made after the start is a note, since the bot finds it by itself; one that names another room now is a fault."""
    found = {one.text.split()[0]: one for one in bot_findings(home, aliases={"#new:b.org": "unresolved", "#old:b.org": "moved"})}
    assert (found["#new:b.org"].what, found["#new:b.org"].level) == ("alias", "note")
    assert "can't be resolved yet" in found["#new:b.org"].text
    assert "every minute" in found["#new:b.org"].remedy
    assert found["#old:b.org"].level == "fault"
    assert "matrix.rooms" in found["#old:b.org"].remedy
