"""One file a step, numbered: a higher number is a newer schema."""
