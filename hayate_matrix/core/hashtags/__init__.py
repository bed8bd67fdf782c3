"""Hashtags: reading them out of a message, and the label that a reply carries.

Promise: a tag is rather missed than invented; every function is pure and takes time linear in the text, on any input.
How: `constructs` takes code, quoted lines, links and source blocks out, `reading` reads tags in what is left, `labels` writes them in
front of a reply.
Not here: who may set a tag (the harness) and the index (the store).
"""

from __future__ import annotations

from hayate_matrix.core.hashtags.labels import put_label
from hayate_matrix.core.hashtags.reading import parse_tags, read_tag

__all__ = ["parse_tags", "put_label", "read_tag"]
