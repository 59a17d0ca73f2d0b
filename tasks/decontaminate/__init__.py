"""Stage 4, decontaminate: cut out text that the benchmarks contain, and set a held-out split aside.

In: DOCUMENTS and benchmark files. Out: DOCUMENTS (pieces, parts map one to one), LEDGER, HELDOUT per part, ITEMS (the
benchmarks in one form) and LEAKS (every item: leaked and where, clean, or unmatchable).

A score on questions that occurred in the training text measures memory. Leaks are word 13-grams shared with an item,
cut with a window around them, as in appendix C of the GPT-3 paper (Brown et al. 2020), on text normalised for matching
only; short items match as a whole; Chinese matches by characters.
"""
