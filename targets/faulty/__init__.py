"""A target that misbehaves on chosen configs: an example of the contract, and a tool for tests.

    from targets.isolated import IsolatedTarget
    target = IsolatedTarget("targets.faulty:make_target", {"faults": {"3": "crash", "5": "hang"}})

Alone it does to its process what the faults say; in an `IsolatedTarget` it hurts nobody.
"""

from targets.faulty.target import FAULTS, Fault, FaultyTarget, make_target

__all__ = ["FAULTS", "Fault", "FaultyTarget", "make_target"]
