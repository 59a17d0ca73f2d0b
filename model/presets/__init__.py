"""Published networks by name: `train.model.preset = "gpt2-small"` stands for all of one's sizes and choices.

Radford et al. 2019 (GPT-2), Zhang et al. 2022 (OPT), Yandex 2022 (YaLM-100B), Black et al. 2022 (GPT-NeoX-20B), Devlin
et al. 2019 (BERT), Raffel et al. 2020 (T5), Chung et al. 2022 (Flan-T5, of the shapes of T5 v1.1).
"""
