"""Stage 4, decontaminate: cut out text that the benchmarks contain, and set a held-out split aside.

In: DOCUMENTS and benchmark files. Out: DOCUMENTS (pieces, parts map one to one), LEDGER, HELDOUT per part, ITEMS (the
benchmarks in one form) and LEAKS (every item: leaked and where, clean, or unmatchable).

A score on questions that occurred in the training text measures memory. Leaks are found by rare seeds of a few words
and an alignment of the whole item, on text normalised for matching only, and cut with a window around them as in
appendix C of the GPT-3 paper (Brown et al. 2020). Paraphrases and translations are not seen.
"""
