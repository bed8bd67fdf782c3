"""The only home of nio: rooms in, rooms out."""
