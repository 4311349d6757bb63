"""Wraps TVM, whose interface changes with every release; no other package talks to it.

`importer` turns a normalised ONNX graph into a Relax module, `partition` finds the subgraphs to
offload, `execute` compiles a module for the CPU. Importing this package imports TVM (a second and
200 MB), so callers import it inside functions.
"""
