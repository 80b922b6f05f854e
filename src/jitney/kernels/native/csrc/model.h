// A decoder-only transformer as data: sizes, packed weights, the KV cache, and one step's inputs. Mirrored field by
// field in kernels/native/library.py; families differ by these values, not by code.
#pragma once
#include <cstdint>
#include <vector>

#include "panels.h"

namespace jitney {

struct ModelConfig {
    int32_t type;  // Type of weights, activations between the products, and KV cache
    int32_t num_layers, hidden, num_heads, num_kv_heads, head_dim, intermediate, vocab;
    int32_t rotary_half;             // half of the dimensions that rotate
    int32_t activation;              // Activation
    int32_t sandwich_norms;          // norms after attention and MLP too (Gemma 2, 3)
    int32_t qk_norm;                 // norms of each head's query and key (Qwen 3, Gemma 3)
    int32_t qkv_bias;
    float norm_eps, norm_offset, query_scale, attention_softcap, logit_softcap, embedding_scale;
};

struct Layer {
    PackedMatrix qkv, out, gate_up, down;
    std::vector<float> input_norm, after_attention_norm, mlp_norm, after_mlp_norm, query_norm, key_norm, qkv_bias;
    const float *cos = nullptr, *sin = nullptr;  // [positions, rotary_half]
    int64_t window = 0;
};

// The ragged batch of one step: row r is the tokens [starts[r], starts[r + 1]).
struct StepArgs {
    int64_t num_tokens, num_rows, num_logits, table_stride, block_size;
    void *const *keys, *const *values;  // [num_layers] each layer's KV cache (layout: attention.h)
    const int32_t* token_ids;      // [num_tokens]
    const int32_t* starts;         // [num_rows + 1]
    const int32_t* positions;      // [num_rows] of each row's first token
    const int32_t* tables;         // [num_rows, table_stride] the rows' blocks
    const int32_t* logits_tokens;  // [num_logits] which tokens' logits are wanted
    float* logits;                 // [num_logits, vocab]
};

}  // namespace jitney
