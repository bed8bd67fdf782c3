"""The command line: each command turns what it finds, or an error, into a text and an exit code."""
