"""Two finished runs held against each other: is the second no worse than the first?"""
