"""The one-command local world."""
