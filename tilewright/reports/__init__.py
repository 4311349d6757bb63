"""Draws pages and pictures.

Matplotlib is kept from warning where it has no folder to cache fonts; it then lists them each time.
"""

import logging

logging.getLogger("matplotlib").setLevel(logging.ERROR)
