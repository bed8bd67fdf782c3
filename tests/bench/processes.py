"""The two bots that are compared, as processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from hayate_matrix.core.ids import DeviceId, UserId
from hayate_matrix.matrix.account import Credentials, save_credentials
from tests.bench import watching
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from hayate_matrix.demo.homeserver import Login

ROOT = Path(__file__).resolve().parents[2]


class Measured:
    """A bot that runs; ours and the bare one differ in how they are started."""

    def __init__(self, folder: Path, name: str, login: Login, url: str) -> None:
        self.name = name
        self.folder = folder / name
        self.folder.mkdir(mode=0o700)
        self.home = self.folder / "home"
        self.home.mkdir(mode=0o700)
        self.login = login
        self.url = url
        self.run = 0
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def notes(self) -> Path:
        """Where the present run writes."""
        return self.folder / f"notes.{self.run}"

    @property
    def log(self) -> Path:
        """The output of the present run."""
        return self.folder / f"log.{self.run}"

    @property
    def pid(self) -> int:
        """The process id."""
        assert self.process is not None
        return self.process.pid

    def log_in(self) -> None:
        """Write the credentials that `hayate-matrix login` would write."""
        secrets = self.home / "secrets"
        secrets.mkdir(mode=0o700)
        login = self.login
        credentials = Credentials(
            homeserver=self.url, user_id=UserId(login.user_id), device_id=DeviceId(login.device_id), access_token=login.access_token
        )
        save_credentials(secrets, credentials)

    def start_ours(self, **settings: str) -> None:
        """Start `hayate-matrix run`; `matrix__trigger="always"` is `--set matrix.trigger=always`."""
        sets = [part for name, value in settings.items() for part in ("--set", f"{name.replace('__', '.')}={value}")]
        self._start("tests.bench.measured", "run", "--set", "log.format=json", *sets)

    def start_bare(self, mode: str) -> None:
        """Start the bare echo."""
        login = self.login
        self._start("tests.bench.bare_echo", self.url, login.user_id, login.device_id, login.access_token, str(self.home), mode)

    def _start(self, module: str, *arguments: str) -> None:
        self.run += 1
        kept = {name: value for name, value in os.environ.items() if not name.startswith("HAYATE_")}
        environment = {**kept, "HAYATE_HOME": str(self.home), "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-m", module, str(self.notes), *arguments]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, env=environment, cwd=ROOT, stdin=subprocess.PIPE, stdout=log, stderr=log)

    def read_log(self) -> str:
        """Return the end of the output."""
        return self.log.read_text()[-2000:]

    async def is_ready(self, *, timeout_s: float = 120.0) -> None:
        """Wait until it says that it is ready."""
        await eventually(
            lambda: "ready" in self.log.read_text() or not self.is_running,
            timeout_s=timeout_s,
            what=lambda: f"{self.name} is ready: {self.read_log()}",
        )
        assert self.is_running, self.read_log()

    @property
    def is_running(self) -> bool:
        """Whether the process lives."""
        return self.process is not None and self.process.poll() is None

    def end(self) -> None:
        """Stop it in order, or kill it."""
        process, self.process = self.process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdin is not None:
            process.stdin.close()

    def longest_block_s(self, *, since: float = 0.0) -> float:
        """Return the longest time for which the loop of the present run was blocked."""
        return max((one["seconds"] for one in watching.read(self.notes, "blocked") if one["at"] >= since), default=0.0)
