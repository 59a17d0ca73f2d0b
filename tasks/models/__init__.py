"""What follows the pipeline: a trained model is fine-tuned on tasks, or exported for `transformers`.

Both are stages with an identity and an artifact, as those of the pipeline are, and take any model: an artifact of train
or of finetune, a folder of a trained model with its vocabulary, or one of `transformers`. `load.py` opens models.
"""
