"""Chunking: DOCUMENTS + TOKENIZER -> SEQUENCES + SPANS + ORDER.

Documents become sequences of fixed length (rows), and nothing is truncated. For GPT (`causal_lm`) each document ends
with the end-of-text token; rows are cut from one stream (`concat`: Brown et al. 2020, section 2.2) or filled so that no
document that fits in a row is cut (`best_fit`: Ding et al. 2024, arXiv 2404.10830). For T5 (`span_corruption`) rows are
cut from the stream at the length that corruption shortens to the model's input (Raffel et al. 2020). For BERT
(`masked_lm`) a row is a pair of segments with a label (Devlin et al. 2019). Masking and corruption happen while
training reads.

SPANS records which bytes of which document each segment of a row came from. ORDER is the exact sequence in which
training reads the rows: shares of tokens by source weight, with a cap on repetition (Chung et al. 2023, UniMax).

A document's segment begins a row or follows an end-of-text token, which is how attention finds document boundaries.
Rows are numbered source by source in the sorted order of names, and within a source in the order of the documents that
come first in them. Padding occurs at the end of rows only: with `concat` in the last row of a source, else in any row.
"""
