"""Implements methods of co-design, a file each; `hardware_search.method` names them."""
