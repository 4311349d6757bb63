"""Injects faults: a target that misbehaves on chosen configs, an example and a tool for tests.

    from tilewright.targets.subprocess_target import IsolatedTarget
    faults = {"3": "crash", "5": "hang"}
    target = IsolatedTarget("tilewright.targets.fault_injection:make_target", {"faults": faults})

Alone it does to its process what the faults say; in an `IsolatedTarget` it hurts nobody.
"""

from tilewright.targets.fault_injection.target import FAULTS, Fault, FaultyTarget, make_target

__all__ = ["FAULTS", "Fault", "FaultyTarget", "make_target"]
