"""A real Synapse on a free loopback port that is thrown away afterwards, for the demo and for the tests.

Promise: nothing of it outlives the process that started it, and it never says nothing for over five seconds while it works.
How: Synapse lives in an environment of its own (it is AGPL and is never imported), reads a configuration made here, and ends when the pipe
to its parent closes, which also happens when the parent is killed.
Not here: the people and rooms in it (demo/scene, tests/support/person).
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.client
import json
import os
import queue
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType

    Say = Callable[[str], None]

SERVER_NAME = "world.test"
"""A name that resolves nowhere: the server speaks to nobody but us."""
PYTHON_VARIABLE = "HAYATE_SYNAPSE_PYTHON"
SILENCE_S = 2.5
"""Longest wait without a line; NEW-4 allows five seconds, and a busy machine takes its share of them."""
READY_S = 90.0
"""Synapse is ready in under 3 s on two idle cores; a busy machine gets the rest."""
REQUEST_S = 30.0

_START = """
import os, runpy, signal, sys, threading
def end_with_parent():
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
threading.Thread(target=end_with_parent, daemon=True).start()
sys.argv = ["synapse", "-c", sys.argv[1]]
runpy.run_module("synapse.app.homeserver", run_name="__main__")
"""

_LIMITS = (
    "rc_message",
    "rc_registration",
    "rc_admin_redaction",
    "rc_joins.local",
    "rc_joins.remote",
    "rc_joins_per_room",
    "rc_invites.per_room",
    "rc_invites.per_user",
    "rc_invites.per_issuer",
    "rc_login.address",
    "rc_login.account",
    "rc_login.failed_attempts",
    "rc_third_party_invite",
    "rc_key_requests",
    "rc_room_creation",
    "rc_presence.per_user",
    "rc_media_create",
    "rc_reports",
)


class HomeserverError(Exception):
    """The throw-away homeserver can't be made or did not start; the text says what to do."""


def tell(line: str) -> None:
    """Print `line` at once, to standard error."""
    print(line, file=sys.stderr, flush=True)


@dataclass(frozen=True, slots=True)
class Login:
    """A device of an account, logged in."""

    user_id: str
    device_id: str
    access_token: str


def find_python(say: Say = tell) -> Path:
    """Return the Python that has Synapse installed, after making its environment where there is none.

    Raises:
        HomeserverError: the requirement file is not there, or pip failed; the text holds the end of its output.
    """
    named = os.environ.get(PYTHON_VARIABLE)
    if named:
        if not Path(named).exists():
            message = f"{PYTHON_VARIABLE} names {named}, which does not exist. Unset it and the environment is made."
            raise HomeserverError(message)
        return Path(named)
    root, requirements = _find_requirements()
    environment = root / ".venv-synapse"
    python = environment / "bin" / "python"
    marker = environment / "made-from"
    wanted = hashlib.sha256(requirements.read_bytes()).hexdigest()
    if python.exists() and marker.exists() and marker.read_text() == wanted:
        return python
    say(f"Making an environment for Synapse in {environment.name} (63 packages, 243 MB, once; about a minute) ...")
    _run([sys.executable, "-m", "venv", "--clear", str(environment)], "making the environment", say)
    pip = [str(python), "-m", "pip", "install", "--disable-pip-version-check", "--require-hashes", "--only-binary", ":all:"]
    _run([*pip, "-r", str(requirements)], "installing Synapse", say)
    marker.write_text(wanted)
    return python


def _find_requirements() -> tuple[Path, Path]:
    places = [Path(__file__).resolve().parents[2], Path.cwd()]
    for root in places:
        requirements = root / "deploy" / "requirements-synapse.txt"
        if requirements.exists():
            return root, requirements
    message = (
        "deploy/requirements-synapse.txt was not found: run this from a checkout of the project, "
        f"or set {PYTHON_VARIABLE} to a Python that has matrix-synapse installed."
    )
    raise HomeserverError(message)


def _run(command: list[str], what: str, say: Say) -> None:
    """Run `command`, pass its output on, and say that it still runs where it is silent."""
    started = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    lines: queue.Queue[str | None] = queue.Queue()

    def read() -> None:
        for line in process.stdout or ():
            lines.put(line.rstrip())
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    last: list[str] = []
    while True:
        try:
            line = lines.get(timeout=SILENCE_S)
        except queue.Empty:
            say(f"  still {what} ({time.monotonic() - started:.0f} s) ...")
            continue
        if line is None:
            break
        last = [*last[-20:], line]
        if line.startswith(("Collecting", "Downloading", "Installing", "Successfully", "ERROR")):
            say(f"  {line[:140]}")
    if process.wait():
        message = f"{what} failed (exit code {process.returncode}). The end of its output:\n" + "\n".join(last)
        raise HomeserverError(message)


class Homeserver:
    """A Synapse that runs: `with Homeserver.start() as homeserver:`."""

    def __init__(self, home: Path, python: Path, port: int, say: Say) -> None:
        self.home = home
        self.name = SERVER_NAME
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self._python = python
        self._say = say
        self._process: subprocess.Popen[bytes] | None = None
        self._secret = ""
        self._admin: Login | None = None

    @classmethod
    def start(
        cls,
        *,
        limits: Literal["high", "stock"] = "high",
        extra: Mapping[str, Any] | None = None,
        say: Say = tell,
        parent: Path | None = None,
    ) -> Self:
        """Start one and return when it answers.

        `limits="stock"` keeps Synapse's own rate limits; `extra` is laid over the configuration; `parent` is where its folder is made.

        Raises:
            HomeserverError: it did not start; the text holds the end of its log.
        """
        python = find_python(say)
        home = Path(tempfile.mkdtemp(prefix="hayate-synapse-", dir=parent))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = int(free.getsockname()[1])
        server = cls(home, python, port, say)
        try:
            server._configure(limits, extra or {})
            server.resume()
        except BaseException:
            server.stop()
            raise
        return server

    def __enter__(self) -> Self:
        """Return the running server."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Stop it and remove its folder."""
        self.stop()

    def _configure(self, limits: str, extra: Mapping[str, Any]) -> None:
        self._secret = secrets.token_hex(16)
        seed = base64.b64encode(secrets.token_bytes(32)).decode().rstrip("=")
        (self.home / "signing.key").write_text(f"ed25519 a_{secrets.token_hex(2)} {seed}\n")
        (self.home / "log.json").write_text(
            json.dumps(
                {
                    "version": 1,
                    "formatters": {"line": {"format": "%(asctime)s %(levelname)s %(name)s %(message)s"}},
                    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "line"}},
                    "root": {"level": "WARNING", "handlers": ["console"]},
                    "disable_existing_loggers": False,
                }
            )
        )
        config: dict[str, Any] = {
            "server_name": self.name,
            "public_baseurl": self.url,
            "listeners": [
                {
                    "port": self.port,
                    "type": "http",
                    "bind_addresses": ["127.0.0.1"],
                    "resources": [{"names": ["client"], "compress": False}],
                }
            ],
            "database": {"name": "sqlite3", "args": {"database": str(self.home / "homeserver.db")}},
            "media_store_path": str(self.home / "media"),
            "signing_key_path": str(self.home / "signing.key"),
            "log_config": str(self.home / "log.json"),
            "pid_file": str(self.home / "pid"),
            "registration_shared_secret": self._secret,
            "macaroon_secret_key": secrets.token_hex(16),
            "form_secret": secrets.token_hex(16),
            "report_stats": False,
            "trusted_key_servers": [],
            "federation_domain_whitelist": [],
            "presence": {"enabled": False},
            "bcrypt_rounds": 4,
            "url_preview_enabled": False,
            # Identical /sync requests are answered from a cache for two minutes otherwise: a client that starts anew gets a stale answer.
            "caches": {"sync_response_cache_duration": "0s"},
        }
        if limits == "high":
            for name in _LIMITS:
                place = config
                *path, leaf = name.split(".")
                for part in path:
                    place = place.setdefault(part, {})
                place[leaf] = {"per_second": 100_000, "burst_count": 100_000}
            config["rc_room_creation"] = config["rc_room_creation"]
            config["rc_delayed_event_mgmt"] = {"per_second": 100_000, "burst_count": 100_000}
        (self.home / "homeserver.json").write_text(json.dumps({**config, **extra}, indent=1))

    def resume(self) -> None:
        """Start the process on the data that is there, and return when it answers."""
        log = (self.home / "server.log").open("ab")
        started = time.monotonic()
        said = started
        self._say("Starting Synapse ...")
        self._process = subprocess.Popen(
            [str(self._python), "-c", _START, str(self.home / "homeserver.json")],
            cwd=self.home,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        log.close()
        while True:
            if self._process.poll() is not None:
                message = f"Synapse ended with code {self._process.returncode}. The end of its log:\n{self.read_log()}"
                raise HomeserverError(message)
            try:
                status, _ = self.request("GET", "/_matrix/client/versions")
            except (OSError, http.client.HTTPException):
                status = 0
            now = time.monotonic()
            if status == http.HTTPStatus.OK:
                self._say(f"Synapse is ready on {self.url} ({now - started:.1f} s).")
                return
            if now - started > READY_S:
                message = f"Synapse did not answer within {READY_S:.0f} s. The end of its log:\n{self.read_log()}"
                raise HomeserverError(message)
            if now - said > SILENCE_S:
                said = now
                self._say(f"  waiting for Synapse to answer on {self.url} ({now - started:.0f} s) ...")
            time.sleep(0.05)

    def pause(self, *, grace_s: float = 10.0) -> None:
        """End the process and keep the data; `resume` starts it again on the same port."""
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(grace_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdin is not None:
            process.stdin.close()

    def stop(self) -> None:
        """End the process and remove its folder."""
        self.pause()
        shutil.rmtree(self.home, ignore_errors=True)

    @property
    def pid(self) -> int | None:
        """The process id while it runs."""
        return None if self._process is None else self._process.pid

    def read_log(self, *, max_bytes: int = 4000) -> str:
        """Return the end of the server's log."""
        path = self.home / "server.log"
        return path.read_bytes()[-max_bytes:].decode(errors="replace") if path.exists() else ""

    def request(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, *, token: str | None = None
    ) -> tuple[int, dict[str, Any]]:
        """Make one blocking request and return status and body; in a coroutine call it through `asyncio.to_thread`."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=REQUEST_S)
        try:
            headers = {"Content-Type": "application/json"}
            if token is not None:
                headers["Authorization"] = f"Bearer {token}"
            connection.request(method, path, body=None if body is None else json.dumps(body), headers=headers)
            answer = connection.getresponse()
            content = answer.read()
        finally:
            connection.close()
        try:
            parsed = json.loads(content or b"{}")
        except ValueError:
            parsed = {}
        return answer.status, parsed if isinstance(parsed, dict) else {}

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None, *, token: str | None = None) -> dict[str, Any]:
        """Like `request`, for what has to work.

        Raises:
            HomeserverError: the server refused; the text holds its answer.
        """
        status, answer = self.request(method, path, body, token=token)
        if status != http.HTTPStatus.OK:
            message = f"{method} {path} was answered {status}: {answer}"
            raise HomeserverError(message)
        return answer

    def register(self, name: str, password: str, *, is_admin: bool = False) -> Login:
        """Make the account @name:world.test; the login that comes with it is a device without keys."""
        path = "/_synapse/admin/v1/register"
        nonce = self.ask("GET", path)["nonce"]
        role = "admin" if is_admin else "notadmin"
        mac = hmac.new(self._secret.encode(), f"{nonce}\0{name}\0{password}\0{role}".encode(), hashlib.sha1).hexdigest()
        body = {"nonce": nonce, "username": name, "password": password, "admin": is_admin, "mac": mac}
        answer = self.ask("POST", path, body)
        return Login(answer["user_id"], answer["device_id"], answer["access_token"])

    def login(self, name: str, password: str, *, device_id: str | None = None) -> Login:
        """Log a device in by password."""
        body: dict[str, Any] = {"type": "m.login.password", "identifier": {"type": "m.id.user", "user": name}, "password": password}
        if device_id is not None:
            body["device_id"] = device_id
        answer = self.ask("POST", "/_matrix/client/v3/login", body)
        return Login(answer["user_id"], answer["device_id"], answer["access_token"])

    @property
    def admin(self) -> Login:
        """An administrator of the server, made when first asked for."""
        if self._admin is None:
            self._admin = self.register("admin", secrets.token_hex(16), is_admin=True)
        return self._admin

    def ask_as_admin(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Call Synapse's admin API, e.g. `ask_as_admin("GET", "/_synapse/admin/v2/users/@bot:world.test/devices")`."""
        return self.ask(method, path, body, token=self.admin.access_token)
