"""What the Prefect server shows of a run: its name and tags, progress, a table and a picture a stage, a summary.

`watching.py` listens to the run and is the only file that talks to the server; `stages.py` and `run.py` write
Markdown from artifacts and the record; `pictures.py` draws, `markdown.py` sets tables. No stage knows of this.
"""
