"""A machine is lost: its backup begins a new device that the same people trust, and nothing is said twice."""

from __future__ import annotations

import shutil
import tarfile
from typing import TYPE_CHECKING

import pytest

from tests.support.bot import Bot
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.plugin import MakeBot, MakePerson


async def _backed_up(bot: Bot, file: Path) -> None:
    code, output = await bot.command("backup", str(file))
    assert code == 0, output


def _new_home(bot: Bot, folder: Path) -> Bot:
    """Return the same account in an empty home, with the sealing key alone."""
    other = Bot(bot.homeserver, folder / "new-home", bot.user_id, bot.password, bot.url, bot.settings)
    (other.home / "secrets").mkdir(parents=True, mode=0o700)
    shutil.copy(bot.home / "secrets" / "store.key", other.home / "secrets" / "store.key")
    return other


async def _restore(bot: Bot, file: Path, folder: Path) -> tuple[int, str]:
    password = folder / "password"
    password.write_text(bot.password)
    password.chmod(0o600)
    return await bot.command("restore", str(file), "--homeserver", bot.url, "--password-file", str(password))


@pytest.mark.requirement("STO-7", "E2E-1", "E2E-7", "PEER-1")
async def test_backup_of_a_running_bot_begins_a_new_device_on_another_machine(
    person: MakePerson, make_bot: MakeBot, tmp_path: Path
) -> None:
    """A strict peer, who trusted the lost device, talks with the restored one; no key index is used twice, no old answer comes again."""
    bot = await make_bot()
    await bot.start()
    alice = await person("alice")
    room = await alice.direct_message(bot.user_id)
    await alice.sees_member(room, bot.user_id)
    await alice.is_answered(await alice.say(room, "echo before"))
    file = tmp_path / "backup.tar"
    await _backed_up(bot, file)
    await alice.is_answered(await alice.say(room, "echo after the backup"))
    await bot.kill()
    restored = _new_home(bot, tmp_path)
    code, output = await _restore(restored, file, tmp_path)
    assert code == 0, output
    restored.settings = {"matrix.rooms": "unset"}
    await restored.start()
    try:
        answer = await alice.is_answered(await alice.say(room, "echo on the new machine"))
        assert answer.is_trusted
        await alice.catches_up()
        assert [one.body for one in alice.messages(room, sender=bot.user_id)] == ["before", "after the backup", "on the new machine"]
        alice.check_strictly(room)
        history = await restored.command("doctor")
        assert "is signed by the account's identity" in history[1]
    finally:
        await restored.stop()


@pytest.mark.requirement("STO-7", "ROOM-1", "CFG-1")
async def test_a_restored_bot_does_not_start_until_it_is_told_what_it_serves(make_bot: MakeBot, tmp_path: Path) -> None:
    """A backup holds no settings: what closed the bot has to be said anew, and until then it serves nobody instead of everybody."""
    bot = await make_bot(settings={"matrix.people": "@ann:example.org", "matrix.rooms": "#ops:example.org"})
    await bot.start()
    await eventually((bot.home / "status.json").exists)
    file = tmp_path / "backup.tar"
    await _backed_up(bot, file)
    await bot.kill()
    restored = _new_home(bot, tmp_path)
    restored.settings = {}
    code, output = await _restore(restored, file, tmp_path)
    assert code == 0, output
    assert "matrix.people, matrix.rooms" in output
    assert "does not start here until matrix.rooms and matrix.people are said" in output
    assert f"hayate.toml to {restored.home}" in output
    for arguments in ((), ("--set", "matrix.people=@ann:example.org"), ("--rooms", "unset")):
        code, output = await restored.command("run", *arguments)
        assert (code, "came from a backup" in output) == (78, True), output
        assert ("matrix.rooms" in output) == ("--rooms" not in arguments)
    code, output = await restored.command("config", "check")
    assert (code, "came from a backup" in output) == (78, True), output
    code, output = await restored.command("doctor")
    assert (code, "the bot does not start" in output) == (1, True), output
    (restored.home / "hayate.toml").write_text('[matrix]\nrooms = "unset"\npeople = []\n')
    await restored.start()
    await restored.stop()


@pytest.mark.requirement("STO-7", "STO-8", "SEC-4")
async def test_backup_holds_no_secret_and_no_text(person: MakePerson, make_bot: MakeBot, tmp_path: Path) -> None:
    """Neither the sealing key, nor the token, nor a word that was said is in the file, nor the device's own account."""
    bot = await make_bot()
    await bot.start()
    alice = await person("alice")
    room = await alice.direct_message(bot.user_id)
    await alice.sees_member(room, bot.user_id)
    await alice.is_answered(await alice.say(room, "echo platypus"))
    file = tmp_path / "backup.tar"
    await _backed_up(bot, file)
    await bot.stop()
    content = file.read_bytes()
    assert b"platypus" not in content
    assert (bot.home / "secrets" / "store.key").read_text().strip().encode() not in content
    assert file.stat().st_mode & 0o777 == 0o600
    with tarfile.open(file) as archive:
        assert sorted(archive.getnames()) == ["hayate.db", "keys.db", "manifest.json"]
        keys = archive.extractfile("keys.db")
        assert keys is not None
        (tmp_path / "keys.db").write_bytes(keys.read())
    import sqlite3  # noqa: PLC0415

    db = sqlite3.connect(tmp_path / "keys.db")
    assert db.execute("select length(account) from accounts").fetchall() == [(0,)]
    assert db.execute("select (select count(*) from olmsessions) + (select count(*) from room_keys_out)").fetchone() == (0,)
    assert db.execute("select count(*) from megolminboundsessions").fetchone()[0] >= 1
    db.close()


@pytest.mark.requirement("STO-7")
async def test_restore_refuses_what_would_mix_two_states(make_bot: MakeBot, tmp_path: Path) -> None:
    """A home that is in use, a missing or another sealing key, and a file that is no backup are each refused with what to do."""
    bot = await make_bot()
    await bot.start()
    await bot.stop()
    file = tmp_path / "backup.tar"
    await _backed_up(bot, file)
    code, output = await bot.command("backup", str(file))
    assert code == 74, output
    code, output = await _restore(bot, file, tmp_path)
    assert (code, "empty home" in output) == (74, True), output
    other = _new_home(bot, tmp_path)
    key = other.home / "secrets" / "store.key"
    key.unlink()
    code, output = await _restore(other, file, tmp_path)
    assert (code, "sealing key" in output) == (74, True), output
    key.write_text("00" * 32)
    key.chmod(0o600)
    code, output = await _restore(other, file, tmp_path)
    assert (code, "store.key of that time" in output) == (74, True), output
    key.unlink()
    nonsense = tmp_path / "nonsense"
    nonsense.write_bytes(b"no tar at all" * 100)
    code, output = await _restore(other, nonsense, tmp_path)
    assert (code, "no backup" in output) == (74, True), output
    assert not (other.home / "matrix.db").exists()
