"""General helpers that every package may use: errors, JSON, files and child processes."""
