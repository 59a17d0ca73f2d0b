"""The guard: detect that a run diverges, roll it back to a healthy checkpoint, skip data and change settings.

It automates what the crews of YaLM-100B and OPT-175B did manually (Zhang et al. 2022,
https://arxiv.org/abs/2205.01068, section 2.5, and its logbook). `detection.py` judges each step before the weights
change and detects divergence, with `change_points.py` for slow rises; `policy.py` decides what follows; `decisions.py`
is the record of decisions on disk; `guard.py` connects them to the trainer. Every rank reaches the same decisions from
the same numbers.
"""
