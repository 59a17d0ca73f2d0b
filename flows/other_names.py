"""What other programs call the keys and values of a recipe."""

OTHER_NAMES = {
    **dict.fromkeys(("learning_rate", "lr", "max_lr"), "peak_lr"),
    **dict.fromkeys(("lr_scheduler", "lr_schedule", "lr_scheduler_type", "scheduler"), "schedule"),
    **dict.fromkeys(("warmup", "warmup_ratio", "warmup_steps"), "warmup_share"),
    **dict.fromkeys(("batch_size", "train_batch_size", "global_batch_size"), "batch_rows"),
    **dict.fromkeys(("micro_batch_size", "per_device_train_batch_size"), "micro_batch_rows"),
    **dict.fromkeys(("max_tokens", "train_tokens", "num_tokens"), "budget_tokens"),
    **dict.fromkeys(("d_model", "hidden_size", "n_embd", "embedding_size"), "width"),
    **dict.fromkeys(("n_layer", "n_layers", "num_layers", "num_hidden_layers"), "layers"),
    **dict.fromkeys(("n_head", "n_heads", "num_heads", "num_attention_heads"), "heads"),
    **dict.fromkeys(("d_ff", "intermediate_size", "ffn_size"), "ffn_width"),
    **dict.fromkeys(("max_seq_len", "seq_len", "block_size", "n_positions", "max_position_embeddings"), "context"),
    **dict.fromkeys(("gradient_checkpointing", "activation_checkpointing"), "recompute"),
    **dict.fromkeys(("max_grad_norm", "grad_clip", "clip_norm"), "clip"),
    **dict.fromkeys(("precision", "mixed_precision"), "dtype"),
}
"""A key elsewhere -> its name here."""
OTHER_VALUES = {
    **dict.fromkeys(("fp16", "half", "16"), "float16"),
    **dict.fromkeys(("bf16", "bf16-mixed"), "bfloat16"),
    **dict.fromkeys(("fp32", "float", "single", "32"), "float32"),
    **dict.fromkeys(("gpu", "nvidia"), "cuda"),
}
"""The same of values."""
