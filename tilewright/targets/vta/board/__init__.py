"""Builds the programs that a board runs: links the layers of a network into relocatable streams."""
