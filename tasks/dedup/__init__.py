"""Stage 3, dedup: remove exact and near duplicates, and keep the better copy.

In: DOCUMENTS, and optionally the dedup artifacts of earlier runs. Out: DOCUMENTS (parts map one to one), LEDGER, INDEX
(doc_id, text_digest, MinHash signature of every kept document) for later runs to compare with, and UNCUT (doc_id, text)
of documents that were cut after they had been compared.

Repeated text makes a model memorise and wastes the budget (Lee et al. 2022, Deduplicating Training Data Makes Language
Models Better). Documents with equal text digests are removed first; then MinHash (Broder 1997) over shingles of 5
words, banded for locality-sensitive hashing, finds candidates; then the true Jaccard similarity of every candidate
decides, because unverified candidates joined by transitive closure can wipe out a source. A document is removed only on
account of one that is kept. Optionally, lines or paragraphs (CCNet) and passages (Lee et al.) that occur more than once
are then cut to one copy.
"""
