"""Markdown as a person wrote it, turned into what a Matrix client shows, and cut into messages that fit.

Promise: no part is larger than its budget, the text stays whole and in order, a code block is never left open, and the HTML holds only
tags and links of Matrix's own list, whatever the Markdown says.
How: the text is parsed once into blocks; each block is rendered once to HTML and to its plain lines, and parts are filled block by block,
so the work grows with the length of the text. A block that is too long alone is cut inside: a table between rows, a list between items,
a code block between lines (closed and opened again), a paragraph between words.
Not here: the file that carries a reply too long for five messages (matrix/send).
"""

from __future__ import annotations

from hayate_matrix.matrix.render.listing import make_permalink, split_listing
from hayate_matrix.matrix.render.pieces import ENCRYPTED_MAX_BYTES, LEAST_BYTES, MAX_PARTS, PLAIN_MAX_BYTES, Overflow, Rendered
from hayate_matrix.matrix.render.split import render, split_reply

__all__ = [
    "ENCRYPTED_MAX_BYTES",
    "LEAST_BYTES",
    "MAX_PARTS",
    "PLAIN_MAX_BYTES",
    "Overflow",
    "Rendered",
    "make_permalink",
    "render",
    "split_listing",
    "split_reply",
]
