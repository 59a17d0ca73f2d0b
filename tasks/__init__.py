"""The stages of the pipeline and what they share.

1. sample: files -> DOCUMENTS
2. clean: DOCUMENTS -> DOCUMENTS
3. dedup: DOCUMENTS -> DOCUMENTS
4. decontaminate: DOCUMENTS -> DOCUMENTS, HELDOUT, ITEMS, LEAKS
5. vocab: DOCUMENTS -> TOKENIZER
6. chunk: DOCUMENTS + TOKENIZER -> SEQUENCES + SPANS + ORDER
7. train: SEQUENCES + ORDER -> MODEL
8. evaluate: MODEL + TOKENIZER + HELDOUT + ITEMS + LEAKS -> SCORES

Stages are strangers: they meet in a flow, through artifacts. Each folder has the same furniture: `config.py`, files
named for their idea, and `task.py`, the thin face that Prefect sees.
"""
