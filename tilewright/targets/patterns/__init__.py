"""Lists post-operations with shapes or tensors of their own, a file each."""
