"""The stages of the pipeline and what they share.

1. sample: files -> DOCUMENTS
2. clean: DOCUMENTS -> DOCUMENTS
3. dedup: DOCUMENTS -> DOCUMENTS
4. decontaminate: DOCUMENTS -> DOCUMENTS, HELDOUT, ITEMS, LEAKS
5. vocab: DOCUMENTS -> TOKENIZER
6. chunk: DOCUMENTS + TOKENIZER -> SEQUENCES + SPANS + ORDER
7. train: SEQUENCES + ORDER -> MODEL
8. evaluate: MODEL + TOKENIZER + HELDOUT + ITEMS + LEAKS -> SCORES

Stages do not import each other: a flow passes artifacts from one to the next. Each stage's folder has `config.py`, its
settings, and `stage.py`, which says what decides its identity and builds it.
"""
