"""Simulates the translation of addresses without page tables: a last page for each DMA unit.

A request to another page asks the shared buffer, which answers one unit a cycle, in turn. A request
that has no answer must try again (FrontendTLB.scala).

The registers of all units are `s` (STATE_WORDS,).
"""

from __future__ import annotations

from tilewright.targets.gemmini.compiled import stage
from tilewright.targets.gemmini.timing.state import (
    TLB_ASKED_PAGE,
    TLB_ASKS,
    TLB_GRANTED,
    TLB_HIT,
    TLB_KNOWN,
    TLB_LAST_GRANT,
    TLB_MISS,
    TLB_PAGE,
    TLB_READER,
    TLB_WRITER,
    UnitState,
)

PAGE_BITS = 12


@stage
def answer_translation(s: UnitState) -> None:
    """Say which unit's request of the cycle before is not translated."""
    granted = -1
    if s[TLB_ASKS + TLB_WRITER]:
        granted = TLB_WRITER
        if s[TLB_ASKS + TLB_READER] and s[TLB_LAST_GRANT] == TLB_WRITER:
            granted = TLB_READER
    elif s[TLB_ASKS + TLB_READER]:
        granted = TLB_READER
    s[TLB_GRANTED] = granted
    if granted >= 0:
        s[TLB_LAST_GRANT] = granted
    for client in range(2):
        s[TLB_MISS + client] = 0 if client == granted or s[TLB_HIT + client] else 1


@stage
def ask_translation(s: UnitState, client: int, valid: int, page: int) -> None:
    """Ask for the page of what waits in a unit's queue (`valid`), and learn the last answer."""
    hit = 1 if s[TLB_KNOWN + client] and s[TLB_PAGE + client] == page else 0
    if s[TLB_GRANTED] == client:
        s[TLB_KNOWN + client] = 1
        s[TLB_PAGE + client] = s[TLB_ASKED_PAGE + client]
    s[TLB_HIT + client] = hit
    s[TLB_ASKS + client] = 1 if valid and not hit else 0
    s[TLB_ASKED_PAGE + client] = page


@stage
def forget_pages(s: UnitState) -> None:
    """FLUSH: both units ask again."""
    s[TLB_KNOWN + TLB_WRITER] = 0
    s[TLB_KNOWN + TLB_READER] = 0
