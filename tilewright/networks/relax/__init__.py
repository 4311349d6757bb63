"""Everything that uses TVM's Relax, whose Python interface changes with every release.

`importer` converts a normalised ONNX graph to a Relax module, `partition` finds the subgraphs that
an accelerator or a kernel can compute, and `execute` compiles a module for the CPU. Importing this
package imports TVM, which takes about a second and 200 MB of memory, so callers import the package
inside functions.
"""
