"""Pages and pictures.

Matplotlib's warning about a missing folder for its font cache is suppressed. Without the folder it
lists the fonts each time.
"""

import logging

logging.getLogger("matplotlib").setLevel(logging.ERROR)
