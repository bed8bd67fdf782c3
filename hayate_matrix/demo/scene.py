"""The demo: a real homeserver, two encrypted rooms of which one is served, a message answered, and a bot that survives `kill -9`.

Everything in it is real but the model: Synapse, two accounts with devices of their own, and the bot as the process that `hayate-matrix run`
starts. Nothing outlives it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from hayate_matrix import log
from hayate_matrix.demo.environment import SILENCE_S
from hayate_matrix.demo.guest import PATIENCE_S, Guest
from hayate_matrix.demo.homeserver import Homeserver, HomeserverError

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from hayate_matrix.core.ids import RoomId

T = TypeVar("T")
_PROGRAM = [sys.executable, "-m", "hayate_matrix.cli.main"]
_START = """
import os, signal, sys, threading
def end_with_parent():
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
threading.Thread(target=end_with_parent, daemon=True).start()
from hayate_matrix.cli.main import main
main(sys.argv[1:])
"""
"""The program, ended by the pipe to the demo: it closes however the demo ends."""


def _find_program() -> str:
    """Return how the command is called that stands beside this Python."""
    path = Path(sys.executable).with_name("hayate-matrix")
    return os.path.relpath(path) if path.exists() else "hayate-matrix"


def tell(line: str = "") -> None:
    """Print a line of the scene at once."""
    print(line, flush=True)


async def _patiently(what: str, work: Awaitable[T]) -> T:
    """Return what `work` gives, and say what is waited for while it takes long."""
    task = asyncio.ensure_future(work)
    started = time.monotonic()
    while not (await asyncio.wait({task}, timeout=SILENCE_S))[0]:
        tell(f"  ... waiting for {what} ({time.monotonic() - started:.0f} s)")
    return task.result()


class BotProcess:
    """The bot, as an operator runs it."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self.log = home.parent / "bot.log"
        kept = {name: value for name, value in os.environ.items() if not name.startswith("HAYATE_")}
        self._environment = {**kept, "HAYATE_HOME": str(home)}
        self._process: subprocess.Popen[bytes] | None = None
        self._read = 0

    async def log_in(self, homeserver: str, user_id: str, password: str) -> None:
        """Run `hayate-matrix login`."""
        file = self._home.parent / "bot-password"
        file.touch(mode=0o600)
        file.write_text(password)
        arguments = ["login", "--homeserver", homeserver, "--user", user_id, "--password-file", str(file)]
        tell(f"$ hayate-matrix login --homeserver {homeserver} --user {user_id} --password-file {file.name}")
        command = [*_PROGRAM, *arguments]
        done = await _patiently(
            "the login",
            asyncio.to_thread(
                subprocess.run, command, env=self._environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False
            ),
        )
        tell(f"  {done.stdout.strip()}")
        if done.returncode:
            raise HomeserverError(done.stderr)

    async def start(self) -> None:
        """Run `hayate-matrix run` and return when it says that it is ready."""
        tell("$ hayate-matrix run")
        with self.log.open("ab") as output:
            self._read = output.tell()
            # Blocking for the milliseconds of a fork; asyncio's own way would end the child with the loop, and the scene ends it itself.
            self._process = subprocess.Popen(  # noqa: ASYNC220
                [sys.executable, "-c", _START, "run"], env=self._environment, stdin=subprocess.PIPE, stdout=output, stderr=output
            )
        started = said = time.monotonic()
        while "ready" not in (text := self.read_log()):
            now = time.monotonic()
            if self._process.poll() is not None or now - started > PATIENCE_S:
                message = f"The bot did not get ready. Its log:\n{text}"
                raise HomeserverError(message)
            if now - said > SILENCE_S:
                said = now
                tell(f"  ... waiting for the bot to be ready ({now - started:.0f} s)")
            await asyncio.sleep(0.05)
        tell(f"  The bot is ready after {time.monotonic() - started:.1f} s.")

    def read_log(self) -> str:
        """Return the log of the present run."""
        return self.log.read_bytes()[self._read :].decode(errors="replace")

    def end(self, number: signal.Signals) -> None:
        """Send a signal and wait until the process is gone."""
        process, self._process = self._process, None
        if process is not None and process.poll() is None:
            process.send_signal(number)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdin is not None:
                process.stdin.close()


async def play(*, once: bool) -> None:
    """Play the scene; stay up afterwards unless `once`.

    Raises:
        HomeserverError: something did not come about; the text says what to do.
    """
    log.configure("error", "text")
    if (task := asyncio.current_task()) is not None:
        for number in (signal.SIGTERM, signal.SIGHUP):  # Ctrl-C is asyncio's
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    with tempfile.TemporaryDirectory(prefix="hayate-demo-") as folder, await asyncio.to_thread(Homeserver.start, say=tell) as homeserver:
        passwords = {name: secrets.token_urlsafe(9) for name in ("hana", "hayate")}
        hana, bot = (homeserver.register(name, password).user_id for name, password in passwords.items())
        tell(f"Two accounts: {hana} is you, {bot} is the bot.")
        home = Path(folder) / "home"
        home.mkdir(mode=0o700)
        process = BotProcess(home)
        guest = await Guest.enter(homeserver.url, hana, passwords["hana"], Path(folder) / "hana", tell)
        try:
            await _prepare(guest, process, home, bot, passwords["hayate"], homeserver.url)
            if once:
                tell("\nThat was all of it.")
                return
            tell("\nThe homeserver and the bot stay up. Log in with a client of your own, or press Ctrl-C to end.")
            tell(f"  homeserver {homeserver.url}   user {hana}   password {passwords['hana']}")
            tell("  Encrypted messages are answered in Garden: write `@hayate echo hello`, or reply to one of its messages.")
            tell(f"  To look at the bot from another terminal: {_find_program()} doctor --home {home}")
            tell(f"  What it logs: {process.log}")
            await asyncio.Event().wait()
        finally:
            with contextlib.suppress(OSError):  # nobody may be reading any more
                tell("Stopping ...")
            await _patiently("the bot to end", asyncio.to_thread(process.end, signal.SIGTERM))
            await _patiently("the guest to end", guest.stop())


async def _prepare(guest: Guest, process: BotProcess, home: Path, bot: str, password: str, url: str) -> None:
    tell("\nTwo encrypted rooms, the bot invited to both: Garden will be on its allowlist, Cellar will not.")
    garden = await guest.create_room("Garden", invite=bot)
    cellar = await guest.create_room("Cellar", invite=bot)
    file = home / "hayate.toml"
    file.touch(mode=0o600)
    file.write_text(f'[matrix]\nrooms = ["{garden}"]\n')
    tell(f"  {home.name}/hayate.toml: [matrix] rooms = ['{garden}']")
    await process.log_in(url, bot, password)
    await process.start()
    await guest.sees_member(garden, bot, "join")
    tell("  The bot has joined Garden.")
    await guest.sees_member(cellar, bot, "leave")
    tell("  The bot has declined Cellar.")
    tell("\nA message in Garden, end-to-end encrypted:")
    await _ask(guest, garden, bot, "Check the greenhouse before Friday")
    tell("\nThe bot is killed in the middle of its life (SIGKILL), and something is said while it is gone:")
    await asyncio.to_thread(process.end, signal.SIGKILL)
    waiting = await guest.says(garden, "echo Are you still there?", to=bot)
    tell("  hana: echo Are you still there?")
    await process.start()
    answer = await guest.sees_answer(waiting)
    tell(f"  hayate: {answer.body}")
    tell("\nAnd the conversation goes on; `history` is answered with the number of requests that it knows of:")
    await _ask(guest, garden, bot, "history")


async def _ask(guest: Guest, room: RoomId, bot: str, text: str) -> None:
    asked_at = time.monotonic()
    event_id = await guest.says(room, text, to=bot)
    tell(f"  hana: {text}")
    answer = await guest.sees_answer(event_id)
    tell(
        f"  hayate: {answer.body}     ({(time.monotonic() - asked_at) * 1000:.0f} ms, {'encrypted' if answer.is_encrypted else 'in clear'})"
    )
