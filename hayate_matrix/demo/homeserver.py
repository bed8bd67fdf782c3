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
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from hayate_matrix.demo.environment import PYTHON_VARIABLE, SILENCE_S, HomeserverError, Say, find_python, tell

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

__all__ = ["PYTHON_VARIABLE", "SERVER_NAME", "Homeserver", "HomeserverError", "Login", "Say", "find_python", "tell"]

SERVER_NAME = "world.test"
"""A name that resolves nowhere: the server speaks to nobody but us."""
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


@dataclass(frozen=True, slots=True)
class Login:
    """A device of an account, logged in."""

    user_id: str
    device_id: str
    access_token: str


class Homeserver:
    """A Synapse that runs: `with Homeserver.start() as homeserver:`."""

    def __init__(self, home: Path, python: Path, say: Say) -> None:
        self.home = home
        self.name = SERVER_NAME
        # Held for life, without listening: nobody else is given the port, while Synapse starts or is paused, and Synapse, which sets the
        # same option, may still listen on it.
        self._reserved = socket.socket()
        self._reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._reserved.bind(("127.0.0.1", 0))
        self.port = int(self._reserved.getsockname()[1])
        self.url = f"http://127.0.0.1:{self.port}"
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
        server = cls(home, python, say)
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
        self._reserved.close()
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
