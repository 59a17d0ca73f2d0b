"""The run page: one self-contained HTML file made from a run's artifacts and its record; no stage knows of it.

`writing.py` writes it, `view.py` gathers what it shows, `rendering.py` fills `template.html` and its `sections/`. Each
`*_chart.py` makes one plain Plotly figure; `draw.js` paints it in the colours of `style.css`. `examples.py`,
`clusters.py`, `steps.py` and `fates.py` look up documents.
"""

from flows.reports.page.page import write_page, write_run_page

__all__ = ["write_page", "write_run_page"]
