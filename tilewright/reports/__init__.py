"""Pages and pictures. Matplotlib does not complain of a home where it cannot keep what it knows of
fonts: then it finds out each time."""

import logging

logging.getLogger("matplotlib").setLevel(logging.ERROR)
