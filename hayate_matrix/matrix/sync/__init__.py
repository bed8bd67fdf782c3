"""From a sync answer to durable rows."""
