"""Stage 3, dedup: exact and near duplicates out, the better copy stays.

In: DOCUMENTS, and optionally the dedup artifacts of earlier runs. Out: DOCUMENTS (parts map one to one), LEDGER, INDEX
(doc_id, text_digest, MinHash signature of every document that stays) for later runs to compare against, and UNCUT
(doc_id, text) of documents that were cut after they had been compared.

Why: repeated text makes a model memorise and wastes the budget (Lee et al. 2022, Deduplicating Training Data Makes
Language Models Better). How: equal text digests first; then MinHash (Broder 1997) over shingles of 5 words, banded for
locality-sensitive hashing; then the true Jaccard similarity of every candidate, because unverified candidates joined by
transitive closure can wipe out a source. A document is removed only against a document that stays. Where asked for,
lines or paragraphs (CCNet) and passages (Lee et al.) that stand in several documents are then cut to one copy.
"""
