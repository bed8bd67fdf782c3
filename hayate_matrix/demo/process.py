"""The bot of the demo: the process that an operator runs, with everything it prints."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, TypeVar

from hayate_matrix.demo.environment import SILENCE_S
from hayate_matrix.demo.guest import PATIENCE_S
from hayate_matrix.demo.homeserver import HomeserverError

if TYPE_CHECKING:
    from collections.abc import Awaitable
    from pathlib import Path

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


def tell(line: str = "") -> None:
    """Print a line of the scene at once."""
    print(line, flush=True)


async def patiently(what: str, work: Awaitable[T]) -> T:
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
        done = await patiently(
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

    async def ends(self) -> str:
        """Return how the process ended, once it has by itself: as the rest of a sentence."""
        while self._process is not None and self._process.poll() is None:  # noqa: ASYNC110  no event tells that a child has ended
            await asyncio.sleep(0.2)
        code = 0 if self._process is None else self._process.returncode
        return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"has ended with exit code {code}"

    def end(self, number: signal.Signals) -> None:
        """Send a signal and wait until the process is gone."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.poll() is None:
            process.send_signal(number)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if process.stdin is not None:
            process.stdin.close()
