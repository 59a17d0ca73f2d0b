"""Executors that process the parts of a stage: in this process, in threads or processes, or on a Dask cluster.

A stage only knows the interface in `tasks/common/work.py`. The executor is made from settings that change no byte of
the result and count in no identity."""
