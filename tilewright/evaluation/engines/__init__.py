"""Times networks by several inference engines in turns."""
