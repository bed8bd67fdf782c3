"""The one long-lived client: the edge as the rest of the program sees it (`edge`), and its workers (`workers`)."""

from hayate_matrix.matrix.client.edge import Edge, EdgeOptions

__all__ = ["Edge", "EdgeOptions"]
