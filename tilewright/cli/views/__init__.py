"""Display of results in a terminal. This package only formats results that others computed."""
