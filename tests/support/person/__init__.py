"""A person in a room, speaking through a second implementation of the cryptography."""

from tests.support.person.read import Read, Unread
from tests.support.person.speaking import Person, person
from tests.support.person.syncing import HAS_OLM, WHY_NO_OLM

__all__ = ["HAS_OLM", "WHY_NO_OLM", "Person", "Read", "Unread", "person"]
