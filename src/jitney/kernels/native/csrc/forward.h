// One step of the whole model: embedding, layers, logits. Each loop below is spread over the thread pool.
//
// The residual stream stays in float32; what the products read is rounded to the weights' type.
#pragma once
#include "attention.h"
#include "kernels.h"
#include "matmul.h"

namespace JITNEY_ISA {

using jitney::Decoder;
using jitney::Layer;
using jitney::PackedMatrix;
using jitney::StepArgs;
using jitney::ThreadPool;

template <class T>
T* sized(std::vector<char>& buffer, int64_t count) {
    const size_t bytes = static_cast<size_t>(count) * sizeof(T) + 64;
    if (buffer.size() < bytes) buffer.resize(bytes);
    auto address = reinterpret_cast<uintptr_t>(buffer.data());
    return reinterpret_cast<T*>((address + 63) / 64 * 64);
}

template <class T>
class Forward {
public:
    Forward(Decoder& model, ThreadPool& pool, const StepArgs& step) : m_(model), c_(model.config), pool_(pool), s_(step) {
        auto& w = model.workspace;
        const int64_t n = num_tokens_ = step.num_decode_rows + step.num_prompt_tokens;
        query_width_ = int64_t{c_.num_heads} * c_.head_dim;
        kv_width_ = int64_t{c_.num_kv_heads} * c_.head_dim;
        qkv_width_ = query_width_ + 2 * kv_width_;
        hidden_ = sized<float>(w.hidden, n * c_.hidden);
        normed_ = sized<T>(w.normed, n * c_.hidden);
        projected_ = sized<float>(w.projected, n * std::max<int64_t>(qkv_width_, c_.hidden));
        query_ = sized<T>(w.query, n * query_width_);
        attended_ = sized<T>(w.attended, n * query_width_);
        gated_ = sized<T>(w.gated, n * c_.intermediate);
        scratch_ = sized<AttentionScratch>(w.scratch, pool.size());
        find_rows();
    }

    void run() {
        if (num_tokens_ == 0) return;
        embed();
        for (size_t index = 0; index < m_.layers.size(); ++index) {
            const Layer& layer = m_.layers[index];
            T* keys = static_cast<T*>(s_.keys[index]);
            T* values = static_cast<T*>(s_.values[index]);
            norm(hidden_, layer.input_norm, normed_);
            product(normed_, c_.hidden, layer.qkv, Finish::store, projected_, qkv_width_,
                    layer.qkv_bias.empty() ? nullptr : layer.qkv_bias.data());
            write_cache(layer, keys, values);
            attention(layer, keys, values);
            if (index + 1 == m_.layers.size()) {
                if (s_.num_logits == 0) return;  // all that such a step is for is in the cache
                keep_wanted_tokens();
            }
            add_product(attended_, query_width_, layer.out, layer.after_attention_norm);
            norm(hidden_, layer.mlp_norm, normed_);
            gate(layer);
            add_product(gated_, c_.intermediate, layer.down, layer.after_mlp_norm);
        }
        logits();
    }

private:
    void find_rows() {
        starts_.resize(s_.num_rows + 1);
        for (int64_t row = 0; row < s_.num_rows; ++row) {
            starts_[row + 1] = starts_[row] + s_.lens[row];
            row_of_.resize(starts_[row + 1], static_cast<int32_t>(row));
        }
    }

    int64_t token_id(int64_t token) const {
        const int64_t given = token - s_.num_decode_rows;
        return given < 0 ? s_.last_tokens[s_.slots[token]] : s_.prompt_tokens[given];
    }

    int64_t position(int64_t token) const {
        const int32_t row = row_of_[token];
        return s_.positions[row] + token - starts_[row];
    }

    const int32_t* table(int64_t row) const { return s_.tables + s_.slots[row] * s_.table_stride; }

    void embed() {
        const PackedMatrix& e = m_.embedding.data ? m_.embedding : m_.head;
        pool_.run(num_tokens_, [&](int64_t token, int) {
            const int64_t id = token_id(token);
            const T* panel = reinterpret_cast<const T*>(e.panel(id / 32));
            float* to = hidden_ + token * c_.hidden;
            constexpr int64_t step = sizeof(T) == 2 ? 2 : 1;
            for (int64_t i = 0; i < c_.hidden; ++i)
                to[i] = as_f32(panel[(i / step * 32 + id % 32) * step + i % step]) * c_.embedding_scale;
        });
    }

    void norm(const float* from, const std::vector<float>& weight, T* to) {
        pool_.run(num_slices(), [&](int64_t slice, int) {
            for (int64_t t = slice_start(slice); t < slice_start(slice + 1); ++t)
                rms_norm(from + t * c_.hidden, weight.data(), c_.norm_offset, c_.norm_eps, c_.hidden, to + t * c_.hidden);
        });
    }

    // Tokens in as many slices as there are threads: for work that is the same for every token.
    int64_t num_slices() const { return std::min<int64_t>(pool_.size(), num_tokens_); }
    int64_t slice_start(int64_t slice) const { return num_tokens_ * slice / num_slices(); }

    void product(const T* a, int64_t lda, const PackedMatrix& b, Finish finish, float* c, int64_t ldc, const float* bias) {
        run_product({a, lda, num_tokens_, &b, bias, finish, c, ldc, nullptr, 0, Activation::silu});
    }

    void run_product(const Product<T>& p) {
        pool_.run(p.b->num_panels(), [&](int64_t panel, int) { multiply_panel(p, panel); });
    }

    void gate(const Layer& layer) {
        run_product({normed_, c_.hidden, num_tokens_, &layer.gate_up, nullptr, Finish::gate, nullptr, 0, gated_,
                     c_.intermediate, static_cast<Activation>(c_.activation)});
    }

    // hidden += a * b, through the sandwich norm where the family has one.
    void add_product(const T* a, int64_t lda, const PackedMatrix& b, const std::vector<float>& after) {
        if (!c_.sandwich_norms) return product(a, lda, b, Finish::add, hidden_, c_.hidden, nullptr);
        product(a, lda, b, Finish::store, projected_, c_.hidden, nullptr);
        pool_.run(num_tokens_, [&](int64_t t, int) {
            float* x = projected_ + t * c_.hidden;
            rms_norm(x, after.data(), c_.norm_offset, c_.norm_eps, c_.hidden, x);
            for (int64_t i = 0; i < c_.hidden; ++i) hidden_[t * c_.hidden + i] += x[i];
        });
    }

    void write_cache(const Layer& layer, T* keys, T* values) {
        pool_.run(num_slices(), [&](int64_t slice, int) {
            for (int64_t t = slice_start(slice); t < slice_start(slice + 1); ++t) write_token(layer, t, keys, values);
        });
    }

    void write_token(const Layer& layer, int64_t token, T* keys, T* values) {
        const int64_t d = c_.head_dim, at = position(token);
        float* states = projected_ + token * qkv_width_;
        const float *cos = layer.cos + at * c_.rotary_half, *sin = layer.sin + at * c_.rotary_half;
        for (int64_t h = 0; h < c_.num_heads + c_.num_kv_heads; ++h) {
            float* head = states + h * d;
            if (c_.qk_norm) {
                const auto& weight = h < c_.num_heads ? layer.query_norm : layer.key_norm;
                rms_norm(head, weight.data(), c_.norm_offset, c_.norm_eps, d, head);
            }
            rotate(head, cos, sin, c_.rotary_half);
        }
        T* query = query_ + token * query_width_;
        for (int64_t i = 0; i < query_width_; i += 16) store_as(query + i, load<f32x16>(states + i));
        const int64_t block = table(row_of_[token])[at / s_.block_size], offset = at % s_.block_size;
        for (int64_t h = 0; h < c_.num_kv_heads; ++h) {
            const int64_t place = (block * c_.num_kv_heads + h) * s_.block_size * d;
            const float* key = states + query_width_ + h * d;
            write_kv(key, key + kv_width_, keys + place, values + place, offset, d, s_.block_size);
        }
    }

    void attention(const Layer& layer, const T* keys, const T* values) {
        const AttentionLayer<T> a{query_,        attended_,     keys,          values,
                                  c_.num_heads,  c_.num_kv_heads, c_.head_dim, s_.block_size,
                                  c_.query_scale, c_.attention_softcap, layer.window};
        if (tasks_.empty()) find_tasks();
        pool_.run(static_cast<int64_t>(tasks_.size()),
                  [&](int64_t index, int thread) { attend(a, tasks_[index], scratch_[thread]); });
    }

    // Rows x KV heads, long rows cut into pieces of a few tokens; the same for all layers.
    void find_tasks() {
        constexpr int64_t piece = 32;
        for (int64_t row = 0; row < s_.num_rows; ++row)
            for (int64_t t = starts_[row]; t < starts_[row + 1]; t += piece)
                for (int64_t h = 0; h < c_.num_kv_heads; ++h)
                    tasks_.push_back({t, std::min<int64_t>(piece, starts_[row + 1] - t), position(t), table(row), h});
    }

    // Behind the last attention only the tokens whose logits are wanted matter.
    void keep_wanted_tokens() {
        auto& w = m_.workspace;
        float* hidden = sized<float>(w.wanted_hidden, s_.num_logits * c_.hidden);
        T* attended = sized<T>(w.wanted_attended, s_.num_logits * query_width_);
        for (int64_t i = 0; i < s_.num_logits; ++i) {
            std::copy_n(hidden_ + s_.logits_tokens[i] * c_.hidden, c_.hidden, hidden + i * c_.hidden);
            std::copy_n(attended_ + s_.logits_tokens[i] * query_width_, query_width_, attended + i * query_width_);
        }
        hidden_ = hidden;
        attended_ = attended;
        num_tokens_ = s_.num_logits;
        normed_ = sized<T>(w.normed, num_tokens_ * c_.hidden);
        projected_ = sized<float>(w.projected, num_tokens_ * c_.hidden);
        gated_ = sized<T>(w.gated, num_tokens_ * c_.intermediate);
    }

    void logits() {
        norm(hidden_, m_.final_norm, normed_);
        product(normed_, c_.hidden, m_.head, Finish::store, s_.logits, c_.vocab, nullptr);
        if (c_.logit_softcap > 0)
            pool_.run(num_tokens_, [&](int64_t row, int) {
                float* x = s_.logits + row * c_.vocab;
                int64_t i = 0;
                for (; i + 16 <= c_.vocab; i += 16)
                    store(x + i, tanh(load<f32x16>(x + i) / c_.logit_softcap) * c_.logit_softcap);
                for (; i < c_.vocab; ++i) x[i] = std::tanh(x[i] / c_.logit_softcap) * c_.logit_softcap;
            });
    }

    Decoder& m_;
    const jitney::ModelConfig& c_;
    ThreadPool& pool_;
    const StepArgs& s_;
    int64_t num_tokens_;  // all of the step's, then those whose logits are wanted
    int64_t query_width_, kv_width_, qkv_width_;
    float *hidden_, *projected_;
    T *normed_, *query_, *attended_, *gated_;
    AttentionScratch* scratch_;
    std::vector<int64_t> starts_;  // [num_rows + 1] each row's first token
    std::vector<int32_t> row_of_;
    std::vector<AttentionTask> tasks_;
};

}  // namespace JITNEY_ISA
