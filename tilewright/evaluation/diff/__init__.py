"""Two finished runs compared: is the second no worse than the first?"""
