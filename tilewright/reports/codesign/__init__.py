"""The front of a co-design run as a page to explore."""
