"""Another sealing key: nothing is lost, wherever the change is cut off."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import hayate_matrix.matrix.keystore.resealing as keys_resealing
from hayate_matrix.cli.reseal import _reseal
from hayate_matrix.errors import StoreError
from hayate_matrix.settings.sources import load
from hayate_matrix.store.database import Database
from hayate_matrix.store.sealing import Sealer, find_next_key, load_key
from tests.matrix.conftest import alice, room, server  # noqa: F401  the world of the edge's tests
from tests.support.desk import Desk
from tests.support.edge import BOT, EdgeWorld

if TYPE_CHECKING:
    from tests.support.fabricated import FabricatedHomeserver, FabricatedRoom
    from tests.support.fabricated.devices import FabricatedUser


@pytest.fixture
def world(server: FabricatedHomeserver, tmp_path: Path) -> EdgeWorld:  # noqa: F811
    """A bot's edge whose key is the home's."""
    made = EdgeWorld(server, tmp_path, server.login(BOT))
    made.key = load_key(tmp_path / "secrets")
    return made


class _CutOff(BaseException):
    """The process ended here."""


def _cut(monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    def end(*_: Any, **__: Any) -> Any:
        raise _CutOff

    if where == "before the harness":
        monkeypatch.setattr(Database, "transaction", end)
    elif where == "between the databases":
        monkeypatch.setattr(keys_resealing, "reseal", end)
    else:
        real = Path.replace
        monkeypatch.setattr(Path, "replace", lambda self, target: end() if self.name.endswith(".next") else real(self, target))


@pytest.mark.requirement("STO-8", "SEC-4")
@pytest.mark.parametrize("where", [None, "before the harness", "between the databases", "before the swap"])
async def test_change_of_the_key_goes_on_where_it_was_cut_off(
    world: EdgeWorld,
    server: FabricatedHomeserver,  # noqa: F811
    room: FabricatedRoom,  # noqa: F811
    alice: FabricatedUser,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    where: str | None,
) -> None:
    """After it, sessions, room keys and the device's own keys open with the new key alone; before its end nothing starts."""
    await world.open()
    await world.synced()
    room.says(alice, "before")
    await world.hears("before")
    await world.edge.gateway.deliver(world.delivery(room.room_id, "answer"))
    await world.close()
    desk = Desk(tmp_path)
    desk.sealer = Sealer(world.key)
    await desk.start()
    await desk.ask("echo platypus")
    await desk.stop()
    loaded = load(home=tmp_path)
    if where is not None:
        with monkeypatch.context() as patch:
            _cut(patch, where)
            with pytest.raises(_CutOff):
                await _reseal(loaded)
        with pytest.raises(StoreError, match="reseal"):
            load_key(tmp_path / "secrets")
    _, key_id = await _reseal(loaded)
    key = load_key(tmp_path / "secrets")
    assert key != world.key
    assert Sealer(key).key_id == key_id
    assert not find_next_key(tmp_path / "secrets" / "store.key").exists()
    with pytest.raises(StoreError):
        await world.open()
    await world.close()
    world.key = key
    await world.open()
    room.says(alice, "after")
    await world.hears("before", "after")
    await world.edge.gateway.deliver(world.delivery(room.room_id, "second answer"))
    assert len({event["content"]["session_id"] for event in server.sent}) == 1
    await world.close()
    desk.sealer = Sealer(key)
    await desk.start()
    assert (await desk.ask("history"))[-1] == "2"
    await desk.stop()
