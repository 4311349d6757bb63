"""Numbers by which compiled code knows what lowers a config: a space, or what max-pools and
patterns with a pipeline of their own have in its place."""

TEMPLATE, EXTENDED, UNCHECKED, POOL, POOLED, SUMMED = 0, 1, 2, 3, 4, 5
