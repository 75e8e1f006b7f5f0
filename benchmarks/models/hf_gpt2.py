"""GPT-2 as the Hugging Face transformers library has it (`GPT2LMHeadModel`), with our gpt2's sizes and weights.

Query, key and value are one layer here and three in ours, and its weights are (inputs, outputs). Loss and gradients agree with
ours, which is held by a test: the one knows nothing of the other.
"""

from __future__ import annotations

from collections.abc import Mapping

from transformers import GPT2Config

from benchmarks.models import gpt2
from benchmarks.models._transformers import TwinModel

RULES = {
    "transformer.wte": ["embedding.token"],
    "transformer.wpe": ["embedding.position"],
    "transformer.h.#.ln_1": ["block#.attention_norm"],
    "transformer.h.#.attn.c_attn": ["block#.attention.query", "block#.attention.key", "block#.attention.value"],
    "transformer.h.#.attn.c_proj": ["block#.attention.output"],
    "transformer.h.#.ln_2": ["block#.mlp_norm"],
    "transformer.h.#.mlp.c_fc": ["block#.mlp.up"],
    "transformer.h.#.mlp.c_proj": ["block#.mlp.down"],
    "transformer.ln_f": ["head.norm"],
    "lm_head": ["head.linear"],
}


class Model(TwinModel):
    """What strategies must know of it."""

    def __init__(self, name: str, dimensions: Mapping[str, bool | int | float]):
        twin = gpt2.Model(name, dimensions)
        d = twin.dimensions
        config = GPT2Config(
            n_embd=d.hidden,
            n_layer=d.blocks,
            n_head=d.heads,
            n_inner=d.mlp,
            vocab_size=d.vocabulary,
            n_positions=d.context,
            layer_norm_epsilon=d.epsilon,
            activation_function="gelu_new",
            bos_token_id=None,
            eos_token_id=None,
        )
        super().__init__(name, config, twin, RULES, transposed=True)
