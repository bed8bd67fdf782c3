"""The real bot as a process of its own: logged in, started, killed, started again."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from hayate_matrix.core.ids import DeviceId, UserId
from hayate_matrix.matrix.account import Credentials, save_credentials
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from hayate_matrix.demo.homeserver import Homeserver
    from tests.support.crashing import Crash

ROOT = Path(__file__).resolve().parents[2]
READY_S = 60.0
STOP_S = 20.0
_BEFORE = "from tests.support.crashing import end_with_parent; end_with_parent()"
_START = "from hayate_matrix.cli.main import main; main()"


@dataclass(eq=False)
class Bot:
    """One home and the processes that run on it, one after the other."""

    homeserver: Homeserver
    home: Path
    user_id: str
    password: str
    url: str
    settings: dict[str, str] = field(default_factory=dict)
    """Settings by their names, as `--set` takes them; `matrix.rooms` too."""
    variables: dict[str, str] = field(default_factory=dict)
    """Environment variables that the processes see besides."""
    prelude: str = ""
    """Python that runs in the process before the program, to put something out of order there."""
    started: int = 0
    _process: subprocess.Popen[bytes] | None = None

    @classmethod
    async def make(
        cls,
        homeserver: Homeserver,
        folder: Path,
        *,
        name: str = "bot",
        url: str | None = None,
        settings: dict[str, str] | None = None,
        login_crash: Crash | None = None,
    ) -> Self:
        """Make the account and log in; `url` goes through a proxy, `login_crash` kills a first login. It is not started yet."""
        name = f"{name}-{secrets.token_hex(3)}"
        password = secrets.token_hex(8)
        login = await asyncio.to_thread(homeserver.register, name, password)
        bot = cls(homeserver, folder / name, login.user_id, password, url or homeserver.url, settings or {})
        bot.home.mkdir(mode=0o700)
        file = folder / f"{name}.password"
        file.write_text(password)
        file.chmod(0o600)
        if login_crash is None:
            device = await asyncio.to_thread(homeserver.login, name, password)
            credentials = Credentials(
                homeserver=bot.url,
                user_id=UserId(device.user_id),
                device_id=DeviceId(device.device_id),
                access_token=device.access_token,
            )
            (bot.home / "secrets").mkdir(mode=0o700)
            save_credentials(bot.home / "secrets", credentials)
            return bot
        arguments = ("login", "--homeserver", bot.url, "--user", bot.user_id, "--password-file", str(file))
        code, output = await bot.command(*arguments, crash=login_crash)
        assert code == -signal.SIGKILL, output
        code, output = await bot.command(*arguments)
        assert code == 0, output
        return bot

    @property
    def environment(self) -> dict[str, str]:
        """What the processes see: nothing of this machine's own settings."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("HAYATE_", "PYTEST"))}
        return {**kept, "HAYATE_HOME": str(self.home), "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "default", **self.variables}

    async def command(self, *arguments: str, timeout_s: float = 60.0, crash: Crash | None = None) -> tuple[int, str]:
        """Run `hayate-matrix ARGUMENTS` to its end and return its exit code and output."""
        program = ["-m", "hayate_matrix.cli.main"] if crash is None else ["-m", "tests.support.crashing", crash.dump()]

        def run() -> tuple[int, str]:
            done = subprocess.run(
                [sys.executable, *program, *arguments],
                env=self.environment,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=timeout_s,
                check=False,
            )
            return done.returncode, done.stdout.decode(errors="replace")

        return await asyncio.to_thread(run)

    # --- a run

    async def start(self, *, is_ready: bool = True, crash: Crash | None = None) -> Self:
        """Start it, and return when it is ready unless `is_ready` is false; `crash` says where it kills itself."""
        assert self._process is None, "it runs already"
        self.started += 1
        arguments = ["run", "--set", "log.format=json", "--set", "log.level=debug"]
        for name, value in self.settings.items():
            arguments += ["--set", f"{name}={value}"]
        program = ["-c", f"{_BEFORE}\n{self.prelude}\n{_START}"] if crash is None else ["-m", "tests.support.crashing", crash.dump()]
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, *program, *arguments], env=self.environment, cwd=ROOT, stdin=subprocess.PIPE, stdout=log, stderr=log
            )
        if is_ready:
            await eventually(
                lambda: self.is_ready or not self.is_running,
                timeout_s=READY_S,
                what=lambda: f"the bot is ready; the end of its log:\n{self.read_log()}",
            )
            assert self.is_running, f"it ended with {self.exit_code}:\n{self.read_log()}"
        return self

    @property
    def log_file(self) -> Path:
        """The log of the present run."""
        return self.home.parent / f"{self.home.name}.{self.started}.log"

    def read_log(self, *, max_bytes: int = 6000) -> str:
        """Return the end of the present run's log."""
        return self.log_file.read_bytes()[-max_bytes:].decode(errors="replace") if self.log_file.exists() else ""

    def lines(self, run: int | None = None) -> list[dict[str, Any]]:
        """Return the log lines of a run (the present one) as they were logged."""
        path = self.log_file if run is None else self.home.parent / f"{self.home.name}.{run}.log"
        found = []
        for line in path.read_text(errors="replace").splitlines() if path.exists() else []:
            try:
                found.append(json.loads(line))
            except ValueError:
                found.append({"event": line})
        return [one for one in found if isinstance(one, dict)]

    @property
    def is_ready(self) -> bool:
        """Whether the present run said that it is ready."""
        return any(line.get("event") == "ready" for line in self.lines())

    @property
    def pid(self) -> int:
        """The process id of the present run."""
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether the process lives."""
        return self._process is not None and self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """The exit code of the present run, negative for a signal; None while it runs."""
        return None if self._process is None else self._process.poll()

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal and don't wait."""
        assert self._process is not None
        self._process.send_signal(number)

    async def kill(self) -> None:
        """End it with SIGKILL, wherever it is."""
        await self._end(signal.SIGKILL)

    async def stop(self) -> int:
        """End it with SIGTERM and return its exit code."""
        return await self._end(signal.SIGTERM)

    async def has_ended(self, *, timeout_s: float = STOP_S) -> int:
        """Wait until it ends by itself and return its exit code."""
        await eventually(lambda: not self.is_running, timeout_s=timeout_s, what=lambda: f"the bot ends; its log:\n{self.read_log()}")
        code = self.exit_code
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
        self._process = None
        return code or 0

    async def dies_at(self, crash: Crash, *, timeout_s: float = 30.0) -> None:
        """Wait until it has killed itself at `crash`."""
        await eventually(lambda: not self.is_running, timeout_s=timeout_s, what=lambda: f"the bot reaches {crash}:\n{self.read_log()}")
        assert await self.has_ended() == -signal.SIGKILL, f"at {crash} it ended otherwise:\n{self.read_log()}"

    async def _end(self, number: signal.Signals) -> int:
        process = self._process
        if process is None:
            return 0
        if process.poll() is None:
            process.send_signal(number)
        try:
            return await self.has_ended()
        except AssertionError:
            process.kill()
            await self.has_ended()
            raise

    async def restart(self) -> Self:
        """Kill it and start it again."""
        await self.kill()
        return await self.start()

    def cpu_s(self) -> float:
        """Return the processor time that the present run has used, in seconds (Linux)."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def now() -> float:
    """Return monotonic seconds, as the proxy's records have them."""
    return time.monotonic()
