"""What a board runs: the layers of a network linked into streams that can be loaded anywhere."""
