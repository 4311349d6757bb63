"""What the accelerator does with post-operations that have shapes or tensors of their own, a file
each, and the table of all of them."""
