"""Links the layers of a network into streams that can be loaded anywhere: what a board runs."""
