"""Lists what the accelerator does with post-operations that have shapes or tensors of their own.

Each is a file.
"""
