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

// The ragged batch of one step. Row r is `lens[r]` tokens of slot `slots[r]` from `positions[r]` on; the decode rows
// come first and have one token each, the slot's last; the tokens of the others are given, row after row.
struct StepArgs {
    int64_t num_rows, num_decode_rows, num_prompt_tokens, num_logits, table_stride, block_size;
    void *const *keys, *const *values;  // [num_layers] each layer's KV cache (layout: attention.h)
    const int32_t *slots, *positions, *lens;  // [num_rows]
    const int32_t* prompt_tokens;             // [num_prompt_tokens]
    const int32_t* last_tokens;               // [slots]
    const int32_t* tables;                    // [slots, table_stride] the slots' blocks
    const int32_t* logits_tokens;             // [num_logits] which tokens' logits are wanted
    float* logits;                            // [num_logits, vocab]
};

// How a slot's request wants its tokens chosen (runner/sampling_state.py has the meanings).
struct SlotSampling {
    double top_p;  // 1 or more: off
    uint64_t stream;
    float temperature, log_min_p;
    int32_t top_k;  // 0: off
    int32_t is_random;
};

struct SampleArgs {
    int64_t num_rows, vocab;
    const float* logits;           // [num_rows, vocab]
    const int32_t *slots, *positions;  // [num_rows] of the token to be sampled
    const SlotSampling* sampling;  // [slots]
    int32_t* last_tokens;          // [slots] learn of the sampled tokens
    int32_t* tokens;               // [num_rows]
    uint8_t* is_valid;             // [num_rows] 0 where the logits held NaN or +inf, or nothing but -inf
};

}  // namespace jitney
