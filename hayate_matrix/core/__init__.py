"""Values and decisions, pure: no clock, no socket, no file."""
