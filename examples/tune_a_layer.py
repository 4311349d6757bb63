"""Tunes one layer from Python: no server, no files. Change the layer, the target or the tuner."""

from __future__ import annotations

from tilewright.flows.tuning import tune
from tilewright.models import make_explorer
from tilewright.targets import make_target
from tilewright.targets.workload import parse_workload

target = make_target("vta-pynq")  # or a vta_config.json of yours: see my_vta.json
layer = parse_workload("conv2d:n=1,c=64,h=14,w=14,o=64,k=3,s=1,p=1")
explorer = make_explorer("default", {"alpha": 1.0})

for done in tune(target, layer, explorer, trials=24, batch=8, seed=0):
    best = f"{done.best_cycles:,}" if done.best_cycles else "none yet"
    print(
        f"round {done.index}: {done.measured.valid.sum()} of {len(done.configs)} valid, best {best}"
    )

assert done.best_config is not None
print(target.space(layer).describe(done.best_config.tolist()))
