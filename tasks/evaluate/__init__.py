"""Evaluation: MODEL + TOKENIZER + SEQUENCES + HELDOUT + ITEMS + LEAKS -> SCORES (+ samples).

Held-out bits per byte by source, the one loss that is comparable across vocabularies (Magnusson et al. 2023, Paloma),
with three baselines that anybody can reproduce: a Kneser-Ney 5-gram of the run's own sequences (Chen and Goodman 1998),
token frequencies, and xz. BERT and T5 have no such loss; they are scored by their training objectives, each figure
under a name of its own. Benchmarks zero-, one- and few-shot (Brown et al. 2020, section 2.4), each score on all, clean
and leaked items with its number of items and standard error. And text that the model generates.
"""
