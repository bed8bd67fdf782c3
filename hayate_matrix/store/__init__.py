"""The only home of SQL (beside the key store of nio)."""
