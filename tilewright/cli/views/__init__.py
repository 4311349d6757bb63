"""What commands show in a terminal. Nothing is decided here."""
