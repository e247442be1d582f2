"""Packs in Hugging Face's models: the samples of a pack have the logits that each has alone."""

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import mmapds

TEXTS = [np.arange(5) + first for first in (3, 20, 40)]


@pytest.mark.parametrize("options", [{}, {"pad_to": 24}, {"packs": 2, "pad_to": 12}])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_samples_of_a_pack_do_not_see_one_another_without_a_cache(attention, options):
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = LlamaConfig(vocab_size=64, num_hidden_layers=2, max_position_embeddings=64, **sizes)
    model = LlamaForCausalLM._from_config(config, attn_implementation=attention)
    batch = mmapds.pack_collate([{"input_ids": text} for text in TEXTS], layout="hf", **options)
    alone = torch.cat([model(torch.tensor(text)[None]).logits[0] for text in TEXTS])
    is_text = batch["input_ids"].flatten() > 0
    found = model(**batch, use_cache=False).logits.flatten(0, 1)[is_text]
    assert torch.allclose(found, alone, atol=1e-5)
    with_cache = model(**batch).logits.flatten(0, 1)[is_text]
    assert not torch.allclose(with_cache, alone, atol=1e-3), "if this holds one day, the docs need use_cache no more"
