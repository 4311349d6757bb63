"""Words why nothing of a model can be offloaded, in one message."""

from __future__ import annotations

from collections import defaultdict

from tilewright.networks.report import ModelReport, OperatorReport

SHOWN_KINDS = 6
SHOWN_NAMES = 2


def nothing_offloaded(report: ModelReport) -> str:
    """The kinds of operators and why each stays, those that multiply most first; and what to do."""
    kinds: dict[tuple[str, str, str], list[OperatorReport]] = defaultdict(list)
    for operator in report.operators:
        kinds[operator.op_type, operator.reason, operator.next_step].append(operator)
    heaviest = sorted(
        kinds.values(), key=lambda same: (-sum(each.macs for each in same), -len(same))
    )
    more = f"; {len(heaviest) - SHOWN_KINDS} more kinds" if len(heaviest) > SHOWN_KINDS else ""
    return (
        f"nothing of '{report.model}' can be offloaded to {report.block_in}×{report.block_out} "
        f"blocks, so there is nothing to tune: {'; '.join(map(_kind, heaviest[:SHOWN_KINDS]))}"
        f"{more}. `tilewright inspect {report.model}` with the same options lists every operator; "
        "tune a model with convolutions or products"
    )


def _kind(same: list[OperatorReport]) -> str:
    first = same[0]
    names = ", ".join(f"'{each.name}'" for each in same[:SHOWN_NAMES])
    dots = ", …" if len(same) > SHOWN_NAMES else ""
    step = f" ({first.next_step})" if first.next_step else ""
    return f"{len(same)} {first.op_type} ({names}{dots}): {first.reason}{step}"
