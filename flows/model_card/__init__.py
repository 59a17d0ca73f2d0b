"""The model card of a run in Hugging Face's format (Mitchell et al. 2019, arXiv 1810.03993; the head as
`huggingface.co/docs/hub/model-cards` has it), written from the run's artifacts alone.

`licences.py` judges whether a declared licence goes with those of the sources, `head.py` is what machines read,
`sections.py` what people do, `card.py` puts them together.
"""
