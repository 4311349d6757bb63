"""What a timed program looks like: the cycles of each unit, as tables, a picture or a page."""
