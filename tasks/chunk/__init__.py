"""Chunking: DOCUMENTS + TOKENIZER -> SEQUENCES + SPANS + ORDER.

Tokens of each source are laid end to end, every document closed by the end-of-text token, and cut into rows of fixed
length (Brown et al., 2020, section 2.2: concatenation without truncation). SPANS remembers which bytes of which
document each stretch of a row came from. ORDER is the exact sequence in which training reads the rows: shares of the
token budget by source weight, with a cap on repetition (Chung et al., 2023, UniMax).

Rows are numbered source by source in the sorted order of names, and within a source in the order of documents. Only
the last row of a source may end in padding.
"""
