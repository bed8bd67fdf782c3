"""The program as an operator meets it: real processes, a real homeserver."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from hayate_matrix.core.status import load_status
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from pathlib import Path

    from hayate_matrix.demo.homeserver import Homeserver

PASSWORD = "geheim-passwort-42"


@pytest.mark.requirement("ACC-1", "E2E-1", "NEW-2", "ROOM-1", "SEC-3", "STO-1", "STO-6")
async def test_login_run_doctor_and_stop_on_a_real_homeserver(homeserver: Homeserver, tmp_path: Path) -> None:
    """The bot is logged in, runs and signs its device; doctor finds nothing wrong; a second bot is refused; SIGTERM ends with 0."""
    homeserver.register("operated", PASSWORD)
    home = tmp_path / "home"
    environment = {**os.environ, "HAYATE_HOME": str(home)}

    def call(*arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "hayate_matrix.cli.main", *arguments]
        return subprocess.run(
            command, env={**environment, **more}, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60, check=False
        )

    login = call("login", "--homeserver", homeserver.url, "--user", "@operated:world.test", HAYATE_MATRIX__PASSWORD=PASSWORD)
    assert login.returncode == 0, login.stderr
    token = json.loads((home / "secrets" / "credentials.json").read_text())["access_token"]
    log = tmp_path / "log"
    command = [sys.executable, "-m", "hayate_matrix.cli.main", "run", "--rooms", "", "--set", "log.level=debug"]
    with log.open("wb") as out, subprocess.Popen(command, env=environment, stdout=out, stderr=out) as bot:
        try:

            def has_synced() -> bool:
                assert bot.poll() is None, log.read_text()
                path = home / "status.json"
                status = load_status(path.read_text()) if path.exists() else None
                return status is not None and status.last_sync_at is not None

            await eventually(has_synced, timeout_s=60, what=log.read_text)
            doctor = call("doctor", "--rooms", "")
            second = call("run")
        finally:
            bot.send_signal(signal.SIGTERM)
            code = bot.wait(30)
    assert doctor.returncode == 0, doctor.stdout
    assert "an empty list: all rooms are denied (--rooms)" in doctor.stdout
    assert "is signed by the account's identity" in doctor.stdout
    assert second.returncode == 75
    assert f"in use by process {bot.pid}" in second.stderr
    assert code == 0, log.read_text()[-3000:]
    assert f"homeserver={homeserver.url}" in log.read_text()
    for secret in (PASSWORD, token):
        assert secret not in log.read_text() + login.stdout + login.stderr + doctor.stdout + doctor.stderr
    after = call("doctor", "--rooms", "")
    assert after.returncode == 0, after.stdout
    assert "is not running" in after.stdout
    open_to_others = [path for path in (home, *home.rglob("*")) if path.stat().st_mode & 0o077]
    assert open_to_others == []
