"""Numbers what lowers a config, for compiled code.

That is a space, or what replaces it for max-pools and patterns with a pipeline of their own.
"""

TEMPLATE, EXTENDED, UNCHECKED, POOL, POOLED, SUMMED = 0, 1, 2, 3, 4, 5
