"""The commands; each turns an error into a text and an exit code."""
