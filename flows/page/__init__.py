"""The run page: one self-contained HTML file made from a run's artifacts and its record; no stage knows of it.

`writing.py` puts it together, `examples.py` looks up texts of removed documents and leaks, `charts.py` draws curves,
`template.html`, `style.css` and `draw.js` are the page itself.
"""

from flows.page.writing import write_page

__all__ = ["write_page"]
