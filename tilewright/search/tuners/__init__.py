"""One explorer a file; importing a file registers it."""
