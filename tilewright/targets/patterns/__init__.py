"""Post-operations with shapes or tensors of their own, a file each, and the list of all of them."""
