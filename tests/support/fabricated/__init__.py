"""A homeserver made of Python objects, for what a real one can't be made to do."""

from tests.support.fabricated.devices import FabricatedDevice, FabricatedUser
from tests.support.fabricated.server import FabricatedHomeserver, FabricatedRoom

__all__ = ["FabricatedDevice", "FabricatedHomeserver", "FabricatedRoom", "FabricatedUser"]
