"""HTML pages, pictures, Markdown and text about results.

Importing this package silences Matplotlib's warning about a missing folder for its font cache.
Without that folder, Matplotlib lists the fonts again in each process.
"""

import logging

logging.getLogger("matplotlib").setLevel(logging.ERROR)
