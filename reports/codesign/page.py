def front_page(summary, rows): return b""
