"""Two runs beside each other: `differing.py` finds what differs, `charts.py` draws it, `writing.py` makes a page of it
in the look of the run page, `telling.py` a table for the terminal."""
