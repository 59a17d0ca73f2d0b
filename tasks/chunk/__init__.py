"""Chunking: DOCUMENTS + TOKENIZER -> SEQUENCES + SPANS + ORDER.

Documents become rows of fixed length, and nothing is truncated. For GPT (`causal_lm`) each document is closed by the
end-of-text token; rows are cut from one stream (`concat`: Brown et al. 2020, section 2.2) or filled so that no document
is cut that fits in a row (`best_fit`: Ding et al. 2024, arXiv 2404.10830). For T5 (`span_corruption`) rows are cut from
the stream at the length that corruption shortens to the model's input (Raffel et al. 2020). For BERT (`masked_lm`) a
row is a pair of stretches with a label (Devlin et al. 2019). Hiding and corrupting happen while training reads.

SPANS remembers which bytes of which document each stretch of a row came from. ORDER is the exact sequence in which
training reads the rows: shares of tokens by source weight, with a cap on repetition (Chung et al., 2023, UniMax).

A document's stretch begins a row or stands behind an end-of-text token, which is how attention finds the borders. Rows
are numbered source by source in the sorted order of names, and within a source in the order of the documents that come
first in them. Padding stands at the end of rows alone: with `concat` in the last row of a source, else in any.
"""
