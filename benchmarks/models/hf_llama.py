"""Llama as the Hugging Face transformers library has it (`LlamaForCausalLM`), with our llama's sizes and weights.

Loss and gradients agree with ours, which is held by a test: the one knows nothing of the other.
"""

from __future__ import annotations

from collections.abc import Mapping

from transformers import LlamaConfig

from benchmarks.models import llama
from benchmarks.models._transformers import TwinModel

RULES = {
    "model.embed_tokens": ["embedding.token"],
    "model.layers.#.input_layernorm": ["block#.attention_norm"],
    "model.layers.#.self_attn.q_proj": ["block#.attention.query"],
    "model.layers.#.self_attn.k_proj": ["block#.attention.key"],
    "model.layers.#.self_attn.v_proj": ["block#.attention.value"],
    "model.layers.#.self_attn.o_proj": ["block#.attention.output"],
    "model.layers.#.post_attention_layernorm": ["block#.mlp_norm"],
    "model.layers.#.mlp.gate_proj": ["block#.mlp.gate"],
    "model.layers.#.mlp.up_proj": ["block#.mlp.up"],
    "model.layers.#.mlp.down_proj": ["block#.mlp.down"],
    "model.norm": ["head.norm"],
    "lm_head": ["head.linear"],
}


class Model(TwinModel):
    """What strategies must know of it."""

    def __init__(self, name: str, dimensions: Mapping[str, bool | int | float]):
        twin = llama.Model(name, dimensions)
        d = twin.dimensions
        config = LlamaConfig(
            hidden_size=d.hidden,
            intermediate_size=d.mlp,
            num_hidden_layers=d.blocks,
            num_attention_heads=d.heads,
            num_key_value_heads=d.kv_heads,
            vocab_size=d.vocabulary,
            max_position_embeddings=d.context,
            rms_norm_eps=d.epsilon,
            rope_parameters={"rope_type": "default", "rope_theta": d.theta},
            tie_word_embeddings=d.tied,
            bos_token_id=None,
            eos_token_id=None,
        )
        super().__init__(name, config, twin, RULES, transposed=False)
