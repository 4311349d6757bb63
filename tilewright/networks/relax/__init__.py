"""The only place that talks to TVM: its interface moves every release.

`importer` turns a normalised ONNX graph into a Relax module, `partition` finds the subgraphs to
offload, `execute` compiles a module for the CPU and runs it. Importing this package imports TVM
(a second and 200 MB), so callers import it inside functions.
"""
