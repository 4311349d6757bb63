"""Commands: what they take, and in which order things are done. `register` adds them."""
