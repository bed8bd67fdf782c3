"""`hayate-matrix export`: what people and the model said, out of a store that goes on being used."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from hayate_matrix.cli.progress import Progress
from hayate_matrix.store.database.look import look_into
from hayate_matrix.store.export import Export
from tests.support.desk import DIRECT, ROOM, Desk

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Call, Outcome
    from tests.support.postgres import Postgres

KEY = bytes(range(32)).hex()
"""The desk's."""


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, home: Path) -> str:
    (home / "secrets").mkdir(parents=True, mode=0o700)
    key = home / "secrets" / "store.key"
    key.touch(mode=0o600)
    key.write_text(KEY)
    if request.param == "sqlite":
        return f"sqlite:///{home / 'hayate.db'}"
    running: Postgres = request.getfixturevalue("postgres")
    return running.make_database()


def read(outcome: Outcome) -> list[dict[str, Any]]:
    assert outcome.code == 0, outcome.err
    return [json.loads(line) for line in outcome.out.splitlines() if line.startswith("{")]  # the harness of this process logs to it too


def talk(url: str, home: Path, *texts: str, during: Any = None) -> Any:
    """Say things in a direct message and one in another room, and do something while the harness runs."""

    async def run() -> Any:
        desk = Desk(home, url=url)
        await desk.start()
        for text in texts:
            await desk.ask(text)
        await desk.ask("@bot:example.org echo elsewhere", room=ROOM, mentions=("@bot:example.org",))
        try:
            return await asyncio.to_thread(during) if during is not None else None
        finally:
            await desk.stop()

    return asyncio.run(run())


@pytest.mark.requirement("SES-4", "IDX-1")
def test_what_was_said_is_written_as_it_is_while_the_bot_runs(call: Call, home: Path, url: str) -> None:
    """Sessions, entries and index rows of all conversations come as lines that refer to each other; keys and work are left out."""
    options = ("--set", f"store.url={url}")
    texts = ("Check the #release notes before Friday", "echo ünï \U0001f338", "tool nothing at all\necho done")
    outcome = talk(url, home, *texts, during=lambda: call("export", *options))
    head, *records = read(outcome)
    assert (head["type"], head["format"]) == ("export", 1)
    kinds = [record["type"] for record in records]
    assert kinds.count("conversation") == 2
    assert kinds.count("session") == 2
    assert kinds.count("tag") == 1
    conversations = {record["room_id"]: record["id"] for record in records if record["type"] == "conversation"}
    sessions = {record["conversation_id"]: record for record in records if record["type"] == "session"}
    session = sessions[conversations[DIRECT]]
    assert (session["state"], session["name"], session["focus"]) == ("active", None, "")
    entries = [record for record in records if record["type"] == "entry" and record["session_id"] == session["id"]]
    assert [entry["kind"] for entry in entries] == ["request", "said", "request", "said", "request", "said", "result", "said"]
    assert [entry["content"]["text"] for entry in entries if entry["kind"] == "request"] == list(texts)
    assert entries[1]["content"]["text"] == "Noted, I will check the release notes."
    (tag,) = (record for record in records if record["type"] == "tag")
    assert (tag["conversation_id"], tag["tag"], tag["session_id"]) == (conversations[DIRECT], "release", session["id"])
    assert tag["entry_id"] == entries[0]["id"]
    assert tag["indexed_at"].endswith("Z")
    assert KEY not in outcome.out
    again = read(call("export", *options))
    assert again[1:] == records


@pytest.mark.requirement("SES-4")
async def test_an_export_is_of_one_moment(home: Path, url: str) -> None:
    """What is said while it is written is not in it, however long it takes."""
    desk = Desk(home, url=url)
    await desk.start()
    await desk.ask("echo before")
    with look_into(url) as connection:
        export = Export(connection, desk.sealer)
        records = iter(export)
        first = next(records)
        await desk.ask("echo meanwhile")
        await desk.ask("echo elsewhere", room=ROOM, is_direct=True)
        rest = list(records)
    await desk.stop()
    assert len([first, *rest]) == export.total
    assert "meanwhile" not in json.dumps(rest)


@pytest.mark.requirement("SES-4", "IDX-2", "SEC-3")
def test_one_room_goes_to_a_file_that_its_owner_alone_reads(call: Call, home: Path, url: str, tmp_path: Path) -> None:
    """`--room` leaves everything of other rooms out; the file is 0600, is never written over, and is whole or not there."""
    talk(url, home, "echo here #yes")
    file = tmp_path / "sessions.jsonl"
    options = ("--set", f"store.url={url}", "--room", DIRECT, "--output", str(file))
    outcome = call("export", *options)
    assert outcome.code == 0, outcome.err
    text = file.read_text()
    assert f"Wrote {len(text.splitlines())} lines" in outcome.out
    assert "here" in text
    assert "elsewhere" not in text
    assert ROOM not in text
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    again = call("export", *options)
    assert again.code == 74
    assert "never written over" in again.err
    nowhere = call("export", "--room", "!nowhere:example.org", "--output", str(tmp_path / "none"), *options[:2])
    assert nowhere.code == 74
    assert "!nowhere:example.org has no conversation" in nowhere.err
    assert [path.name for path in tmp_path.iterdir() if path.name not in {"home", "sessions.jsonl"}] == []


@pytest.mark.requirement("SES-4", "IN-5")
def test_a_message_that_was_redacted_is_no_longer_in_an_export(call: Call, home: Path, url: str) -> None:
    """Its entry stays as a stone, and the index row that points to it too."""

    async def run() -> None:
        desk = Desk(home, url=url)
        await desk.start()
        message = await desk.say("echo the #secret garden")
        await desk.idle()
        await desk.accept(desk.redaction(message))
        await desk.idle()
        await desk.stop()

    asyncio.run(run())
    outcome = call("export", "--set", f"store.url={url}")
    records = read(outcome)
    (stone,) = (record for record in records if record.get("kind") == "request")
    assert stone["content"] is None
    assert [record["entry_id"] for record in records if record["type"] == "tag"] == [stone["id"]]


@pytest.mark.requirement("SES-4", "STO-8")
@pytest.mark.parametrize(
    ("harm", "told"),
    [
        ("no key", "is gone"),
        ("another key", "is sealed with the key"),
        ("no database", "There is nothing in"),
    ],
)
def test_what_can_not_be_exported_is_told(call: Call, home: Path, harm: str, told: str) -> None:
    """A key or a database that is missing is one sentence, and nothing is made in its place."""
    url = f"sqlite:///{home / 'hayate.db'}"
    (home / "secrets").mkdir(parents=True, mode=0o700)
    key = home / "secrets" / "store.key"
    if harm != "no key":
        key.touch(mode=0o600)
        key.write_text(KEY if harm == "no database" else KEY[::-1])
    if harm != "no database":
        talk(url, home, "echo here")
    outcome = call("export")
    assert outcome.code == 74
    assert told in outcome.err
    assert "{" not in outcome.out
    assert key.exists() == (harm != "no key")
    assert (home / "hayate.db").exists() == (harm != "no database")


@pytest.mark.requirement("SES-4", "NEW-4")
def test_a_reader_that_has_enough_is_no_fault(home: Path) -> None:
    """`export | head -1` ends without a word."""
    (home / "secrets").mkdir(parents=True, mode=0o700)
    key = home / "secrets" / "store.key"
    key.touch(mode=0o600)
    key.write_text(KEY)
    talk(f"sqlite:///{home / 'hayate.db'}", home, *(f"echo {number} {'x' * 30_000}" for number in range(4)))
    command = [sys.executable, "-m", "hayate_matrix.cli.main", "export", "--home", str(home)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, "PYTHONUNBUFFERED": ""}) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert json.loads(process.stdout.readline())["type"] == "export"
        process.stdout.close()
        told = process.stderr.read()
        process.wait(30)
    assert told == b""
    assert process.returncode == 1


@pytest.mark.requirement("NEW-4")
@pytest.mark.parametrize("is_terminal", [True, False], ids=["terminal", "elsewhere"])
def test_long_work_says_how_far_it_is(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *, is_terminal: bool) -> None:
    """A bar that goes away at the end on a terminal, plain lines elsewhere, and nothing where it is over at once."""
    at = [0.0]
    monkeypatch.setattr("hayate_matrix.cli.progress.time.monotonic", lambda: at[0])
    monkeypatch.setattr("sys.stderr.isatty", lambda: is_terminal)
    quick = Progress("copying")
    for done in range(1, 5):
        quick(done, 4)
    assert capsys.readouterr().err == ""
    slow = Progress("copying")
    for done in range(1, 5):
        at[0] += 3
        slow(done, 4)
    told = capsys.readouterr().err
    if is_terminal:
        assert "copying: 50 % [###############...............]" in told
        assert told.endswith("\r")
        assert "\n" not in told
    else:
        assert told == "copying: 25 %\ncopying: 50 %\ncopying: 75 %\n"
