"""One model over several ranks: matrices cut across them (tensor parallel), layers one after the other (pipeline
parallel), each group beside copies of itself that share the batch (data parallel)."""
