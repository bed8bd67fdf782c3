"""The only home of SQL: what the harness keeps, one module for each durable thing."""
