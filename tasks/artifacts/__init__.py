"""Artifacts, the immutable results of stages: how one is identified, built once, published, reused and read.

`build.py` is the entry point: it computes the identity, reuses a published artifact, or builds one under a lease in a
workspace and publishes it atomically.
"""
