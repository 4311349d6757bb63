"""What `tilewright vta cycles` shows."""

from __future__ import annotations

from targets.files import Json


def cycles_text(document: dict[str, Json]) -> str:
    """What `reports.timeline.activities` gave: a line a unit, busy and then where it waited."""
    total = document["total_cycles"]
    lines = [f"{total:,} cycles, {document['instructions']:,} instructions"]
    for unit, row in document["units"].items():
        spent = sorted(row["spent"].items(), key=lambda item: -item[1])
        parts = ", ".join(f"{name} {cycles / total:.1%}" for name, cycles in spent)
        lines.append(f"  {unit:8} busy {row['busy']:>12,} ({row['busy'] / total:6.1%})  {parts}")
    lines.append(
        f"  read {document['read_beats']:,} beats in {document['read_bursts']:,} bursts, "
        f"wrote {document['write_beats']:,} in {document['write_bursts']:,}"
    )
    return "\n".join(lines)
