"""Prefect artifacts of a run: its name and tags, progress, tables for each stage, and a summary.

`watcher.py` listens to the run and is the only file that sends requests to the Prefect server; `artifacts.py` writes
Markdown from a run's artifacts and record.
"""
