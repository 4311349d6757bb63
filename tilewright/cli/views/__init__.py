"""Shows results in a terminal. Nothing is decided here."""
