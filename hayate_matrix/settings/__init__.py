"""Every setting with its limits, and where values come from."""
