"""Stage 1, sample: files of many formats become DOCUMENTS, each with an id that never changes.

What: reads every source, gives each record a `doc_id`, keeps the share of each source that the mixture can use, and
writes down every record it could not read. Weights are shares of training tokens, as in GPT-3 (Brown et al. 2020,
table 2.2). A document is kept when a hash of its id falls under its source's rate, so that any sharding selects the
same documents and a larger budget only adds.

In -> out: files -> DOCUMENTS + REJECTS (+ an empty LEDGER: not being selected takes no row).
"""
