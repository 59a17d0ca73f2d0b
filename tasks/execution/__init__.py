"""Work on the parts of a stage: in this process, in threads or processes of this machine, or on a Dask cluster.

A stage knows `work.py` alone: what an executor does, whichever it is. The others are built beside the stage, from
settings that change no byte of its result, and count in no identity.
"""
