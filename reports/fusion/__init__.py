"""The page of a labelled network: what runs together, and what that saves."""

from reports.fusion.page import fusion_page, with_page

__all__ = ["fusion_page", "with_page"]
