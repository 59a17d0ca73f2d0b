"""Fine-tune a trained BERT, T5 or GPT on tasks with labelled examples.

BERT gets a head for sentence classification, token classification or span extraction (Devlin et al. 2019, section 4).
T5 reads the task's name and fields as text and writes the answer as text, for several tasks at once if asked (Raffel et
al. 2020, sections 2.4 and 3.5.2). GPT learns the assistant's answers of conversations. All weights are trained, or
low-rank adapters (Hu et al. 2021). Examples are lines of JSON. Held-out examples choose the epoch, and test examples
are scored once, at the end.
"""
