"""Methods of co-design, a file each; `codesign.method` names them."""
