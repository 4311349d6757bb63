"""Tuning outcomes of invented workloads, as a run would produce them."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.search import History
from tilewright.targets import make_target
from tilewright.targets.base import Space
from tilewright.targets.capabilities import Latency
from tilewright.targets.workload import parse_workload
from tilewright.tuning.network import Extracted, Model, Subgraph, TuningNetwork
from tilewright.tuning.options import TuningOptions
from tilewright.tuning.outputs import Summary, summary_of
from tilewright.tuning.results import Schedule, TunedWorkload
from tilewright.tuning.tuning_task import tuning_task_of

OPTIONS = TuningOptions(model="net", trials=8)


def outcome(
    o: int = 16,
    source: str | None = "estimate",
    *,
    counted: bool = True,
    chosen: bool = True,
    bound: int | None = 500,
) -> TunedWorkload:
    """Return the outcome of a 3×3 convolution with 16 input and `o` output channels.

    The baseline takes 2,000 cycles and the tuned schedule 1,000. With 32 or more output channels,
    both take 1.5 times as many.
    """
    workload = parse_workload(f"conv2d:n=1,c=16,h=8,w=8,o={o},k=3,s=1,p=1")

    def latency(cycles: int) -> Latency:
        return Latency(cycles * 1e-8, cycles if counted else -1)

    def schedule(of: str, cycles: int) -> Schedule:
        return Schedule(of, "extended", (0,), {"tile_h": 1}, latency(cycles))

    scale = 1 if o < 32 else 1.5
    return TunedWorkload(
        task=tuning_task_of(OPTIONS, workload),
        count=1 if o < 32 else 2,
        names=("conv1", "conv2") if o < 32 else ("conv3",),
        baseline=None if source is None else schedule(source, round(2000 * scale)),
        fallback=None if source is None else latency(round(9000 * scale)),
        chosen=schedule("trial", round(1000 * scale)) if chosen else None,
        roofline=latency(400),
        bound=None if bound is None else latency(bound),
        trials=8, invalid_trials=2, lowered=8, failed_compiles=0, reused_trials=0, timed_again=1,
        wall_seconds=1.0, history=History.empty(Space("none", ())),
    )  # fmt: skip


def summary(outcomes: Sequence[TunedWorkload]) -> Summary:
    subgraphs = tuple(
        Subgraph(outcome.workload, outcome.count, outcome.names) for outcome in outcomes
    )
    result = Extracted(subgraphs, {"total": 10, "offloaded": 10})
    network = TuningNetwork(Model("net", "net", ""), make_target("vta-pynq"), result)
    return summary_of(OPTIONS, network, outcomes)
