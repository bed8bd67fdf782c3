"""Who owns a home."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from hayate_matrix.errors import HomeBusyError
from hayate_matrix.store.database.locks import is_owned, own

ROOT = Path(__file__).parents[2]
RACER = """
import sys
from pathlib import Path
from hayate_matrix.errors import HomeBusyError
from hayate_matrix.store.database.locks import own

print("ready", flush=True)
sys.stdin.readline()
try:
    ownership = own(Path(sys.argv[1]), what="the home")
except HomeBusyError as error:
    print("busy", error, flush=True)
    sys.exit(error.exit_code)
print("owner", flush=True)
sys.stdin.readline()
"""


def start_racer(path: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", RACER, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


def say(racer: subprocess.Popen[str]) -> None:
    assert racer.stdin is not None
    racer.stdin.write("\n")
    racer.stdin.flush()


def hear(racer: subprocess.Popen[str]) -> str:
    assert racer.stdout is not None
    return racer.stdout.readline().strip()


@pytest.mark.requirement("STO-6")
def test_eight_racers_end_with_one_owner_and_a_killed_owner_frees_at_once(tmp_path: Path) -> None:
    """Eight processes that start at once end with exactly one owner, again after each owner is killed; each loser names it and exits 75."""
    path = tmp_path / "home.lock"
    owner: subprocess.Popen[str] | None = None
    for _ in range(3):
        racers = [start_racer(path) for _ in range(8)]
        try:
            assert [hear(racer) for racer in racers] == ["ready"] * 8
            if owner is not None:
                owner.send_signal(signal.SIGKILL)
                owner.wait(timeout=10)
                owner.communicate()
            for racer in racers:
                say(racer)
            verdicts = [hear(racer) for racer in racers]
            assert sum(verdict == "owner" for verdict in verdicts) == 1, verdicts
            owner = racers[verdicts.index("owner")]
            for racer, verdict in zip(racers, verdicts, strict=True):
                if racer is not owner:
                    assert f"process {owner.pid}," in verdict
                    assert racer.wait(timeout=10) == 75
        finally:
            for racer in racers:
                if racer is not owner:
                    racer.kill()
                    racer.communicate()
    assert owner is not None
    owner.kill()
    owner.communicate()


@pytest.mark.requirement("STO-6")
def test_the_same_process_is_refused_too(tmp_path: Path) -> None:
    """A second owner in one process is refused like any other, and the first keeps what it has."""
    path = tmp_path / "home.lock"
    with own(path, what="the home"):
        for _ in range(2):
            with pytest.raises(HomeBusyError, match=f"The home is in use by process {os.getpid()}"):
                own(path, what="the home")
    own(path, what="the home").release()


@pytest.mark.requirement("STO-1", "STO-6")
def test_lock_files_are_private(tmp_path: Path) -> None:
    """What a lock leaves in the home is readable by nobody else."""
    with own(tmp_path / "home.lock", what="the home"):
        assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o600}


@pytest.mark.requirement("STO-6")
def test_a_lock_file_that_is_none_is_named(tmp_path: Path) -> None:
    """A file that is no lock database stops the start with what to do."""
    path = tmp_path / "home.lock"
    path.write_bytes(b"no database at all" * 100)
    with pytest.raises(Exception, match="no lock database"):
        own(path, what="the home")


@pytest.mark.requirement("STO-6")
def test_whether_a_home_is_owned_can_be_looked_at_without_touching_it(tmp_path: Path) -> None:
    """Another process's ownership is seen, ends with a kill, and survives the look; where there is no lock none is made."""
    path = tmp_path / "home.lock"
    assert not is_owned(path)
    assert not path.exists()
    racer = start_racer(path)
    assert hear(racer) == "ready"
    say(racer)
    assert hear(racer) == "owner"
    assert is_owned(path)
    with pytest.raises(HomeBusyError):
        own(path, what="the home")
    racer.kill()
    racer.communicate()
    assert not is_owned(path)
    with own(path, what="the home"):
        assert is_owned(path)
        assert is_owned(path)
    assert not is_owned(path)
