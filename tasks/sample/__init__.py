"""Stage 1, sample: read files of many formats into DOCUMENTS with stable ids.

Reads every source, gives each record a `doc_id`, keeps the share of each source that the mixture can use, and records
every unreadable record. Weights are shares of training tokens, as in GPT-3 (Brown et al. 2020, table 2.2). A document
is kept if a hash of its id is below its source's rate, so that any sharding selects the same documents and a larger
budget only adds documents.

Input -> output: files -> DOCUMENTS + REJECTS (+ an empty LEDGER: documents that are not selected have no row).
"""
