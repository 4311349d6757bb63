"""Display of results in a terminal. No decisions are made here."""
