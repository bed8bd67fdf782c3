"""The demo: a real homeserver, a conversation under hashtags, a bot that survives `kill -9`, and rooms that know nothing of each other.

Everything in it is real but the model: Synapse, the accounts with devices of their own, and the bot as the process that `hayate-matrix run`
starts. Nothing outlives it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import secrets
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hayate_matrix import log
from hayate_matrix.demo.guest import Guest
from hayate_matrix.demo.homeserver import Homeserver, HomeserverError
from hayate_matrix.demo.process import BotProcess, patiently, tell
from hayate_matrix.demo.talk import show, stay

if TYPE_CHECKING:
    from hayate_matrix.core.ids import RoomId

_RESUME = re.compile(r"^ +/resume (\S+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cast:
    """Who is in the scene."""

    hana: Guest
    process: BotProcess
    home: Path
    bot: str
    you: str
    """Somebody with whom nobody has logged in yet: the account for a client of one's own."""


async def play(*, once: bool) -> None:
    """Play the scene; stay up afterwards unless `once`.

    Raises:
        HomeserverError: something did not come about; the text says what to do.
    """
    log.configure("error", "text")
    _end_with_signals()
    with (
        tempfile.TemporaryDirectory(prefix="hayate-demo-", ignore_cleanup_errors=True) as folder,  # a bot started by hand may write there
        await asyncio.to_thread(Homeserver.start, say=tell) as homeserver,
    ):
        passwords = {name: secrets.token_urlsafe(9) for name in ("hana", "you", "hayate")}
        hana, you, bot = (homeserver.register(name, password).user_id for name, password in passwords.items())
        tell(f"Two people and a bot: {hana} is played here, {you} is you, {bot} is the bot.")
        home = Path(folder) / "home"
        home.mkdir(mode=0o700)
        process = BotProcess(home)
        guest = await Guest.enter(homeserver.url, hana, passwords["hana"], Path(folder) / "hana", tell)
        cast = Cast(hana=guest, process=process, home=home, bot=bot, you=you)
        try:
            garden, direct = await _prepare(cast, passwords["hayate"], homeserver.url)
            await _converse(cast, garden, direct)
            if once:
                tell("\nThat was all of it. Try next: `make demo`, which stays up to be talked to, or docs/tutorial.md.")
                return
            _invite_a_client(homeserver, cast, passwords["you"])
            await stay(process, guest, garden, bot=bot, start_again=f"{_find_program()} run --home {home}")
        finally:
            with contextlib.suppress(OSError):  # nobody may be reading any more
                tell("Stopping ...")
            await patiently("the bot to end", asyncio.to_thread(process.end, signal.SIGTERM))
            await patiently("the guest to end", guest.stop())


async def lend_homeserver() -> None:
    """Keep a homeserver up for whoever has none, with an account that nobody has used for the bot and one for its operator."""
    _end_with_signals()
    with await asyncio.to_thread(Homeserver.start, say=tell) as homeserver:
        passwords = {name: secrets.token_urlsafe(9) for name in ("bot", "you")}
        bot, you = (homeserver.register(name, password).user_id for name, password in passwords.items())
        tell("\nA homeserver for docs/tutorial.md, until Ctrl-C; it is thrown away then. Write world.test there for example.org.")
        tell(f"  your client    homeserver {homeserver.url}   user {you}   password {passwords['you']}")
        tell(f"  the bot        {_find_program()} login --homeserver {homeserver.url} --user {bot}   password {passwords['bot']}")
        try:
            await asyncio.Event().wait()
        finally:
            with contextlib.suppress(OSError):  # nobody may be reading any more
                tell("Stopping ...")


def _end_with_signals() -> None:
    if (task := asyncio.current_task()) is not None:
        for number in (signal.SIGTERM, signal.SIGHUP):  # Ctrl-C is asyncio's
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)


async def _prepare(cast: Cast, password: str, url: str) -> tuple[RoomId, RoomId]:
    """Make the rooms, start the bot, and return the shared room that it serves and the direct message."""
    hana, bot = cast.hana, cast.bot
    tell("\nThree encrypted rooms with the bot invited: Garden and hana's direct message will be on its allowlist, Cellar will not.")
    garden = await hana.create_room("Garden", invite=[bot, cast.you])
    cellar = await hana.create_room("Cellar", invite=[bot])
    direct = await hana.create_room("hana and hayate", invite=[bot], is_direct=True)
    rooms = [garden, f"dm:{hana.user_id}", f"dm:{cast.you}"]
    file = cast.home / "hayate.toml"
    file.touch(mode=0o600)
    file.write_text(f"[matrix]\nrooms = {json.dumps(rooms)}\n")
    tell(f"  {cast.home.name}/hayate.toml: [matrix] rooms = {json.dumps(rooms)}")
    await cast.process.log_in(url, bot, password)
    await cast.process.start()
    await hana.sees_member(garden, bot, "join")
    await hana.sees_member(direct, bot, "join")
    tell("  The bot has joined Garden and the direct message.")
    await hana.sees_member(cellar, bot, "leave")
    tell("  The bot has declined Cellar: no answer, no receipt, nothing.")
    return garden, direct


async def _converse(cast: Cast, garden: RoomId, direct: RoomId) -> None:
    hana, process = cast.hana, cast.process
    tell("\nA request with a hashtag in Garden, encrypted, with a mention, as rooms need it; the answer carries the tag as a label:")
    await _ask(hana, garden, "Check the #release notes before Friday", to=cast.bot)

    tell("\nThe bot is killed in the middle of its life (SIGKILL), and something is said while it is gone:")
    await asyncio.to_thread(process.end, signal.SIGKILL)
    text = "@hayate The #rollout and the #release begin at nine"
    waiting = await hana.says(garden, text, to=cast.bot)
    tell(f"  hana: {text}")
    await process.start()
    show((await hana.sees_answer(waiting)).body)

    tell("\nWhat was said under which tag outlives the bot; a lookup leads back to the very message:")
    await _ask(hana, garden, "/hashtags")
    found = await _ask(hana, garden, "/hashtags #release")
    earlier = _RESUME.findall(found)
    if not earlier:
        message = f"`/hashtags #release` named no session. The bot's log:\n{process.read_log()}"
        raise HomeserverError(message)

    tell("\nA fresh session knows nothing of it (`history` is answered with the number of requests), until the old one is resumed:")
    await _ask(hana, garden, "/new Weekend")
    await _ask(hana, garden, "history", to=cast.bot)
    await _ask(hana, garden, f"/resume {earlier[-1]}")
    await _ask(hana, garden, "history", to=cast.bot)

    tell("\nThe direct message is another conversation, though the same person asks; it sees none of Garden:")
    await _ask(hana, direct, "/hashtags")


async def _ask(guest: Guest, room: RoomId, text: str, *, to: str | None = None) -> str:
    """Say something, show it and its answer, and return the answer."""
    text = f"@hayate {text}" if to else text
    asked_at = time.monotonic()
    event_id = await guest.says(room, text, to=to)
    tell(f"  hana: {text}")
    answer = await guest.sees_answer(event_id)
    took_ms = (time.monotonic() - asked_at) * 1000
    show(answer.body, f"     ({took_ms:.0f} ms, {'encrypted' if answer.is_encrypted else 'in clear'})")
    return answer.body


def _invite_a_client(homeserver: Homeserver, cast: Cast, password: str) -> None:
    tell("\nThe homeserver and the bot stay up until Ctrl-C. Log in with a client of your own (Element, for example).")
    tell(f"  homeserver {homeserver.url}   user {cast.you}   password {password}")
    tell("  Accept the invite to Garden and write there, then in a direct message with the bot:")
    for typed, what in (
        ("@hayate The #gate needs oil", "a request (pick hayate from the list that @ opens); the answer carries the tag"),
        ("!hashtags", "the tags of this room, in Garden hana's too; in the direct message only yours"),
        ("!hashtags #release", "when and where; the time is a link to the message"),
        ("!sessions", "the transcripts, each with its id for !resume"),
        ("!help", "everything else"),
    ):
        tell(f"    {typed:<30}{what}")
    tell("  Many clients keep `/` for commands of their own: `!` and `//` mean the same to the bot.")
    tell("  It talks to devices that their owner has signed: a new account's first client signs itself once its encryption is set up.")
    tell(f"  To look at the bot from another terminal: {_find_program()} doctor --home {cast.home}")
    tell(f"  What it logs: {cast.process.log}")


def _find_program() -> str:
    """Return how the command is called that stands beside this Python."""
    path = Path(sys.executable).with_name("hayate-matrix")
    return os.path.relpath(path) if path.exists() else "hayate-matrix"
