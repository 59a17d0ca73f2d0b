"""A trained BERT or T5 taught a task with labelled examples.

BERT gets a head for sentences (Devlin et al. 2019, section 4), words or answers in a passage; T5 reads the task as text
behind its name and writes the answer as text, several tasks at once if asked (Raffel et al. 2020, sections 2.4 and
3.5.2). Examples are lines of JSON; what is held out of the training file chooses the epoch, and test items are looked
at once, at the end.
"""
