"""Stage 4, decontaminate: what also stands in the benchmarks is cut out; a held-out split is set aside.

In: DOCUMENTS and benchmark files. Out: DOCUMENTS (pieces, parts map one to one), LEDGER, HELDOUT per part, ITEMS (the
benchmarks in one form) and LEAKS (every item: leaked and where, clean, or unmatchable).

Why: a score on questions that stood in the training text measures memory. How: shared word 13-grams with a window cut
around them, as in appendix C of the GPT-3 paper (Brown et al. 2020), on text normalised for matching only; short items
match as a whole; Chinese by characters.
"""
