"""The guard: sees that a run leaves its course, goes back to where it was well, and changes something.

What the crews of YaLM-100B and OPT-175B did by hand (Zhang et al. 2022, https://arxiv.org/abs/2205.01068, section 2.5,
and its logbook), as a program. `detection.py` says what is wrong with a step before the weights move, and when a run
diverges; `health.py` which checkpoints can be gone back to; `deciding.py` where to, which data are skipped and what
changes; `attempts.py` keeps decisions on disk. Every rank comes to the same decisions from the same numbers.
"""
