"""All code that uses TVM's Relax, whose interface changes with every release.

`importer` converts a normalised ONNX graph to a Relax module, `partition` finds the subgraphs to
offload, and `execute` compiles a module for the CPU. Importing this package imports TVM, which
takes a second and 200 MB, so callers import it inside functions.
"""
