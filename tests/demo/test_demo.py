"""The demo as a newcomer runs it: the process, its words and its end."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import IO

import pytest

from hayate_matrix.core.ids import RoomId
from hayate_matrix.core.status import load_status
from hayate_matrix.demo.guest import Guest
from hayate_matrix.demo.homeserver import PYTHON_VARIABLE, HomeserverError, find_python
from tests.support.waiting import eventually

ROOT = Path(__file__).resolve().parents[2]
SILENCE_S = 5.0
"""Nothing is silent for longer (NEW-4); a time that the specification names, not a measure of speed."""


@pytest.mark.requirement("NEW-1", "NEW-4", "ROOM-1", "ROOM-3", "IDX-2", "IDX-6", "LBL-1", "SES-2")
def test_demo_plays_the_scene_and_is_never_silent() -> None:
    """A tagged request is answered under its label, also by a bot that was killed; its lookup leads back to it, and from no other room."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    lines: list[str] = []
    silences: list[float] = []
    with subprocess.Popen(
        [sys.executable, "-u", "-m", "hayate_matrix.demo", "--once"],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        last = time.monotonic()
        for line in process.stdout or ():
            silences.append(time.monotonic() - last)
            last = time.monotonic()
            lines.append(line.rstrip())
    shown = "\n".join(lines)
    assert process.returncode == 0, shown
    session = re.search(r"^            /resume (\S+)$", shown, re.MULTILINE)
    assert session is not None, shown
    place = 0
    for expected in (
        "The bot has joined Garden",
        "The bot has declined Cellar",
        "hana: @hayate Check the #release notes before Friday\n",
        "hayate: #release · Noted, I will check the release notes.",
        "(SIGKILL)",
        "hayate: #release #rollout · Noted: The #rollout and the #release begin at nine",
        "hana: /hashtags\n  hayate: #release",
        "\n          #rollout",
        "hana: /hashtags #release\n",
        f" · {session[1]}",
        "\n            The #rollout and the #release begin at nine\n",
        "\n            Check the #release notes before Friday\n",
        "hana: @hayate history\n  hayate: 1",
        f"hayate: Resumed: Check the #release notes before Friday · {session[1]}",
        "hana: @hayate history\n  hayate: 3",
        "another conversation",
        "hayate: No message here carries a hashtag yet",
        "That was all of it. Try next: `make demo`",
    ):
        assert expected in shown[place:], f"{expected!r} is missing, or elsewhere:\n{shown}"
        place = shown.index(expected, place)
    assert max(silences) <= SILENCE_S, shown


@pytest.mark.requirement("NEW-1")
@pytest.mark.parametrize("end", ["hangup", "kill", "closed output"])
async def test_it_stays_up_for_a_client_and_nothing_outlives_it(end: str, tmp_path: Path) -> None:
    """What it says to type works with the account that it names; however it ends, its bot ends too, and where it can, its folder."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, "-m", "hayate_matrix.demo"],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        process_group=0,
    ) as process:
        assert process.stdout is not None
        wanted = "The bot is ready" if end == "closed output" else "doctor --home "
        shown = []
        for line in process.stdout:
            shown.append(line)
            if wanted in line:
                break
        if end == "closed output":
            process.stdout.close()
        else:
            if end == "hangup":
                await _type_what_is_shown("".join(shown), tmp_path)
                _kill_its_bot(shown, process.stdout)
            os.kill(process.pid, signal.SIGHUP if end == "hangup" else signal.SIGKILL)
        process.wait(60)
    assert process.returncode == {"hangup": 0, "kill": -signal.SIGKILL, "closed output": 1}[end], shown
    await eventually(lambda: not _is_group_alive(process.pid), timeout_s=60)
    if end == "hangup":
        assert not Path(shown[-1].split("--home ")[1].strip()).exists()


def _kill_its_bot(shown: list[str], more: IO[str]) -> None:
    """Kill the bot as the tutorial does, and read that the demo noticed and how to start it again."""
    place = shown[-1].split("--home ")[1].strip()
    status = load_status((Path(place) / "status.json").read_text())
    assert status is not None
    os.kill(status.pid, signal.SIGKILL)
    told = next(line for line in more if line.startswith("The bot was ended"))
    assert "SIGKILL" in told
    assert more.readline().endswith(f"hayate-matrix run --home {place}\n")
    assert not Path(f"/proc/{status.pid}").exists(), "it is a zombie"


@pytest.mark.requirement("NEW-1", "NEW-4")
async def test_a_homeserver_alone_has_what_the_tutorial_needs(tmp_path: Path) -> None:
    """`make homeserver` names an account for the bot, logged in as it stands there, and one for its operator; it ends with SIGTERM."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-u", "-m", "hayate_matrix.demo", "--homeserver"]
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            you = bot = None
            for line in process.stdout:
                you = you or re.search(r"homeserver (\S+) +user (\S+) +password (\S+)", line)
                if bot := re.search(r"login (--homeserver \S+ --user \S+) +password (\S+)", line):
                    break
            assert you is not None
            assert bot is not None
            guest = await Guest.enter(you[1], you[2], you[3], tmp_path / "you", print)
            await guest.stop()
            home = tmp_path / "home"
            done = subprocess.run(
                [sys.executable, "-m", "hayate_matrix.cli.main", "login", *bot[1].split(), "--home", str(home)],
                env={**environment, "HAYATE_MATRIX__PASSWORD": bot[2]},
                capture_output=True,
                text=True,
                check=False,
                timeout=60,
            )
            assert done.returncode == 0, done.stderr
        finally:
            process.terminate()
            process.wait(30)
    assert process.returncode == 0


@pytest.mark.requirement("NEW-1")
async def test_what_is_typed_at_the_demo_is_said_in_the_room(tmp_path: Path) -> None:
    """Nobody needs a client for a first look: a line at the terminal is a request, one with `!` a command, and the answers are shown."""
    ours, theirs = os.openpty()
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    log = tmp_path / "shown"
    with (
        log.open("w") as out,
        subprocess.Popen(
            [sys.executable, "-u", "-m", "hayate_matrix.demo"], cwd=ROOT, env=environment, stdin=theirs, stdout=out, stderr=out
        ) as process,
    ):
        try:

            async def shows(text: str) -> None:
                await eventually(lambda: text in log.read_text() or process.poll() is not None, timeout_s=120, what=log.read_text)
                assert text in log.read_text()

            await shows("you: ")
            os.write(ours, b"The #gate needs oil\n")
            await shows("you:   hayate: #gate \u00b7 Noted: The #gate needs oil\nyou: ")
            os.write(ours, b"!hashtags\n")
            await shows("hayate: #gate\n          #release\n          #rollout\nyou: ")
        finally:
            process.terminate()
            process.wait(60)
            os.close(ours)
            os.close(theirs)
    assert process.returncode == 0


async def _type_what_is_shown(shown: str, folder: Path) -> None:
    """Be the person at a client of their own: log in, accept the invite, and type what stands there."""
    place = re.search(r"homeserver (\S+) +user (\S+) +password (\S+)", shown)
    garden = re.search(r'rooms = \["([^"]+)"', shown)
    request = re.search(r"^    (@hayate .*?) {2,}", shown, re.MULTILINE)
    assert place is not None, shown
    assert garden is not None
    assert request is not None
    room, bot = RoomId(garden[1]), "@hayate:world.test"
    guest = await Guest.enter(place[1], place[2], place[3], folder / "you", print)
    try:
        await guest.sees_member(room, place[2], "join")
        answer = await guest.sees_answer(await guest.says(room, request[1], to=bot))
        assert answer.body == "#gate · Noted: The #gate needs oil"
        told: dict[str, str] = {}
        for command in re.findall(r"^    (![a-z #]+?) {2,}", shown, re.MULTILINE):
            told[command] = (await guest.sees_answer(await guest.says(room, command))).body
        assert set(told) == {"!hashtags", "!hashtags #release", "!sessions", "!help"}
        assert told["!hashtags"] == "#gate\n#release\n#rollout"
        assert told["!hashtags #release"].count("/resume") == 2
        direct = await guest.create_room("you and hayate", invite=[bot], is_direct=True)
        await guest.sees_member(direct, bot, "join")
        assert (await guest.sees_answer(await guest.says(direct, "!hashtags"))).body.startswith("No message here carries a hashtag yet")
    finally:
        await guest.stop()


@pytest.mark.requirement("NEW-1")
def test_make_hands_the_flag_on() -> None:
    """`make demo ONCE=1` plays the scene and ends; without it the demo stays up."""
    for arguments, is_once in (["ONCE=1"], True), ([], False):
        # The tests may be run by make themselves, which would then say where it works.
        make = ["make", "--no-print-directory", "-n", "demo", *arguments]
        done = subprocess.run(make, cwd=ROOT, capture_output=True, text=True, check=False, timeout=30)
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip().split("\n")[-1].endswith("--once") == is_once


def _is_group_alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.requirement("NEW-1")
def test_demo_refuses_what_it_does_not_know() -> None:
    """A wrong option gives the usage."""
    done = subprocess.run([sys.executable, "-m", "hayate_matrix.demo", "--twice"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "--once" in done.stderr


def test_named_python_that_is_missing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The variable that names Synapse's Python must name one that exists."""
    monkeypatch.setenv(PYTHON_VARIABLE, "/nowhere/python")
    with pytest.raises(HomeserverError, match="/nowhere/python"):
        find_python()
