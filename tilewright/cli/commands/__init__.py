"""The commands: their options, and the order of their work. `register` adds them to the app."""
