"""The run page: one self-contained HTML file made from a run's artifacts and its record.

`page.py` collects what the page shows and writes it; `render.py` fills `template.html` and its `sections/`.
`examples.py` and `sections.py` look up documents. Figures come from `flows.reports.charts`; `draw.js` draws them in the
colours of `style.css`.
"""
