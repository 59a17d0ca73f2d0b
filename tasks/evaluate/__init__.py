"""Evaluation: MODEL + TOKENIZER + HELDOUT + ITEMS + LEAKS -> SCORES (+ samples).

Held-out bits per byte by source, the one loss that is comparable across vocabularies (Magnusson et al., 2023, Paloma),
beside two baselines that any reader can repeat: token frequencies and xz. Benchmarks zero-, one- and few-shot (Brown
et al., 2020, section 2.4), each score on all, clean and leaked items with its number of items and standard error. And
text that the model writes.
"""
