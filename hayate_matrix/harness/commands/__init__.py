"""What a person may ask the bot itself: running it (`run`), sessions (`sessions`), lookups that only read (`lookups`)."""

from hayate_matrix.harness.commands.answers import Effects
from hayate_matrix.harness.commands.run import Commands

__all__ = ["Commands", "Effects"]
