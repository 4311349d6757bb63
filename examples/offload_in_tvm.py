"""Runs layers of a network on the simulated VTA in a TVM script. Change the model or the target."""

from __future__ import annotations

import numpy as np
import tvm
from tvm import relax
from tvm.relax.frontend.onnx import from_onnx

from tilewright.flows.tvm_partition import offloaded, partition_for_vta
from tilewright.networks.quantisation import model_with_weights, quantise

model = quantise(model_with_weights("digits_cnn")).model  # or onnx.load("a QDQ model.onnx")
stock = from_onnx(model)
mod = partition_for_vta(stock, target="vta-pynq")

for layer in offloaded(mod).layers:
    print(f"{layer.name:6} {layer.operator:14} {layer.workload:45} {layer.cycles:6,} cycles")

x = np.random.default_rng(0).standard_normal((1, 1, 8, 8), dtype=np.float32)
scores = [
    relax.VirtualMachine(tvm.compile(item, "llvm"), tvm.cpu())["main"](tvm.runtime.tensor(x))
    for item in (stock, mod)
]
print("TVM alone", *scores[0].numpy()[0])
print("with VTA ", *scores[1].numpy()[0])
