"""Draws the page of a labelled network: what runs together, and what that saves."""

from tilewright.reports.fusion.page import fusion_page

__all__ = ["fusion_page"]
