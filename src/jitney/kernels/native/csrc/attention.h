// Causal attention straight from block tables, for prefill chunks and decode rows alike.
//
// The query heads that share a KV head, times the tokens of a chunk, are the rows of a tile; keys come in groups of 16
// and tiles of 256 at fixed positions, merged by online softmax (Milakov and Gimelshein 2018). A row's sums run over
// positions in one fixed order, and hidden keys add exact zeros, so a row's result does not depend on chunking or on
// its neighbours. What lies in the cache past a row's context is never added up, whatever it is.
//
// A block of one KV head in the cache ([block][kv head], then):
//     float32   keys [head_dim][block_size]           values [block_size][head_dim]
//     bfloat16  keys [head_dim / 2][block_size][2]    values [block_size / 2][head_dim][2]
#pragma once
#include <algorithm>
#include <vector>

#include "elementwise.h"
#include "simd.h"

namespace JITNEY_ISA {

constexpr int64_t kKeyTile = 256;
constexpr int64_t kGroup = 16;
constexpr int kMaxRows = 12;
constexpr float kHidden = -1e30f;

template <class T>
struct AttentionLayer {
    const T* query;  // [tokens, num_heads, head_dim]
    T* out;          // the same shape
    const T* keys;   // this layer's cache
    const T* values;
    int64_t num_heads, num_kv_heads, head_dim, block_size;
    float scale;
    float softcap;   // 0: none
    int64_t window;  // tokens a query sees, itself included; 0: all
};

// Queries [first, first + count) of the batch; the first stands at `position` of its sequence.
struct AttentionTask {
    int64_t first, count, position;
    const int32_t* table;
    int64_t kv_head;
};

struct AttentionScratch {
    alignas(64) float scores[kMaxRows][kKeyTile];
    alignas(64) float sums[kMaxRows][512];  // head_dim is at most 512
    alignas(64) bf16 weights[kMaxRows][kKeyTile];
    float peak[kMaxRows], total[kMaxRows];
};

template <class T>
struct RowTile {
    const AttentionLayer<T>& layer;
    const AttentionTask& task;
    int64_t first_row;  // row = token * group + head of the group
    int num_rows;

    int64_t group() const { return layer.num_heads / layer.num_kv_heads; }
    int64_t position(int r) const { return task.position + (first_row + r) / group(); }
    int64_t offset(int r) const {
        const int64_t row = first_row + r, g = group();
        return ((task.first + row / g) * layer.num_heads + task.kv_head * g + row % g) * layer.head_dim;
    }
    int64_t block(int64_t position) const {
        const int64_t block = task.table[position / layer.block_size];
        return (block * layer.num_kv_heads + task.kv_head) * layer.block_size * layer.head_dim;
    }
};

inline const float* key_group(const float* block, int64_t offset) { return block + offset; }
inline const bf16* key_group(const bf16* block, int64_t offset) { return block + 2 * offset; }

inline void add_products(f32x16& sum, const float* query, const float* keys) {
    sum += splat(*query) * load<f32x16>(keys);
}
inline void add_products(f32x16& sum, const bf16* query, const bf16* keys) { dot_pairs(sum, query, keys); }

// Scores of R rows with J groups of 16 keys from `start` on.
template <class T, int R, int J>
inline void score_groups(const RowTile<T>& tile, int64_t start, float (*scores)[kKeyTile], int64_t column) {
    constexpr int64_t step = sizeof(T) == 2 ? 2 : 1;  // dimensions that one operation takes
    const auto& layer = tile.layer;
    const T* keys[J];
    const T* query[R];
    for (int j = 0; j < J; ++j) {
        const int64_t position = start + j * kGroup;
        keys[j] = key_group(layer.keys + tile.block(position), position % layer.block_size);
    }
    for (int r = 0; r < R; ++r) query[r] = layer.query + tile.offset(r);
    f32x16 sums[R][J];
    for (int r = 0; r < R; ++r)
        for (int j = 0; j < J; ++j) sums[r][j] = splat(0.0f);
    for (int64_t d = 0; d < layer.head_dim; d += step)
        for (int j = 0; j < J; ++j)
            for (int r = 0; r < R; ++r) add_products(sums[r][j], query[r] + d, keys[j] + d * layer.block_size);
    for (int r = 0; r < R; ++r)
        for (int j = 0; j < J; ++j) store(scores[r] + column + j * kGroup, sums[r][j] * layer.scale);
}

// Asks for the part of a block's keys or values that belongs to a group of 16 tokens: blocks lie anywhere in memory, so
// the processor cannot guess which is next.
template <class T>
inline void fetch_group(const RowTile<T>& tile, const T* cache, int64_t position) {
    const auto& layer = tile.layer;
    const T* from = cache + tile.block(position) + position % layer.block_size * layer.head_dim;
    for (int64_t i = 0; i < kGroup * layer.head_dim; i += 64 / static_cast<int64_t>(sizeof(T)))
        __builtin_prefetch(from + i);
}

template <class T, int R>
inline void score_tile(const RowTile<T>& tile, int64_t start, int64_t stop, float (*scores)[kKeyTile]) {
    constexpr int J = R <= 4 ? 4 : 2;
    int64_t position = start;
    for (; position + J * kGroup <= stop; position += J * kGroup) {
        for (int64_t at = position; at < position + J * kGroup; at += kGroup) {
            if (at + J * kGroup < stop) fetch_group(tile, tile.layer.keys, at + J * kGroup);
            fetch_group(tile, tile.layer.values, at);
        }
        score_groups<T, R, J>(tile, position, scores, position - start);
    }
    for (; position < stop; position += kGroup) {
        fetch_group(tile, tile.layer.values, position);
        score_groups<T, R, 1>(tile, position, scores, position - start);
    }
}

// Turns scores[0, count) into weights e^(score - peak) and keeps the running peak and total; returns what the sums so
// far must be multiplied by.
inline float soften(float* scores, int64_t count, int64_t visible_from, int64_t visible_to, float softcap,
                    AttentionScratch& scratch, int r) {
    const i32x16 lanes = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    f32x16 tops = splat(kHidden);
    for (int64_t i = 0; i < count; i += kGroup) {
        f32x16 s = load<f32x16>(scores + i);
        if (softcap > 0) s = tanh(s / softcap) * softcap;
        if (i < visible_from || i + kGroup > visible_to) {
            const i32x16 at = lanes + static_cast<int32_t>(i);
            s = (at >= static_cast<int32_t>(visible_from)) & (at < static_cast<int32_t>(visible_to)) ? s
                                                                                                       : splat(kHidden);
        }
        tops = max(tops, s);
        store(scores + i, s);
    }
    const float old_peak = scratch.peak[r];
    const float peak = std::max(old_peak, highest(tops));
    f32x16 totals = splat(0.0f);
    for (int64_t i = 0; i < count; i += kGroup) {
        const f32x16 s = load<f32x16>(scores + i);
        const f32x16 w = s <= splat(0.5f * kHidden) ? splat(0.0f) : exp(s - peak);  // NaN stays NaN
        totals += w;
        store(scores + i, w);
    }
    const float keep = old_peak <= 0.5f * kHidden ? 0.0f : exp(splat(old_peak - peak))[0];
    scratch.peak[r] = peak;
    scratch.total[r] = scratch.total[r] * keep + sum(totals);
    return keep;
}


inline const float* values_at(const float* block, int64_t dim) { return block + dim; }
inline const bf16* values_at(const bf16* block, int64_t dim) { return block + 2 * dim; }

// acc[R][C] += weights * values over `count` tokens of one block.
template <int R, int C>
inline void add_weighted(f32x16 (&acc)[R][C], const float* const (&weights)[R], int64_t at, const float* values,
                         int64_t head_dim, int64_t count) {
    for (int64_t t = 0; t < count; ++t)
        for (int c = 0; c < C; ++c) {
            const f32x16 v = load<f32x16>(values + t * head_dim + 16 * c);
            for (int r = 0; r < R; ++r) acc[r][c] += splat(weights[r][at + t]) * v;
        }
}

template <int R, int C>
inline void add_weighted(f32x16 (&acc)[R][C], const bf16* const (&weights)[R], int64_t at, const bf16* values,
                         int64_t head_dim, int64_t count) {
    int64_t t = 0;
    for (; t + 2 <= count; t += 2)
        for (int c = 0; c < C; ++c)
            for (int r = 0; r < R; ++r) dot_pairs(acc[r][c], weights[r] + at + t, values + t * head_dim + 32 * c);
    if (t == count) return;
    for (int c = 0; c < C; ++c) {  // the last token has no partner yet: what stands in its place is no number
        alignas(64) bf16 alone[32];
        store(alone, load<i32x16>(values + t * head_dim + 32 * c) & 0xffff);
        for (int r = 0; r < R; ++r) dot_pairs(acc[r][c], weights[r] + at + t, alone);
    }
}

// Dimensions [dim, dim + 16 * C) of R rows: sums += weights * values over keys [start, stop). The sums stay in registers.
template <class T, int R, int C>
inline void weigh(const RowTile<T>& tile, int64_t start, int64_t stop, const T* const (&weights)[R],
                  float* const (&sums)[R], int64_t dim) {
    const auto& layer = tile.layer;
    f32x16 acc[R][C];
    for (int r = 0; r < R; ++r)
        for (int c = 0; c < C; ++c) acc[r][c] = load<f32x16>(sums[r] + dim + 16 * c);
    for (int64_t position = start; position < stop;) {
        const int64_t offset = position % layer.block_size;
        const int64_t count = std::min(stop - position, layer.block_size - offset);
        const T* values = values_at(layer.values + tile.block(position) + offset * layer.head_dim, dim);
        add_weighted<R, C>(acc, weights, position - start, values, layer.head_dim, count);
        position += count;
    }
    for (int r = 0; r < R; ++r)
        for (int c = 0; c < C; ++c) store(sums[r] + dim + 16 * c, acc[r][c]);
}

template <class T, int R>
inline void weigh_tile(const RowTile<T>& tile, int64_t start, int64_t stop, const T* const (&weights)[R],
                       float* const (&sums)[R]) {
    int64_t dim = 0;
    for (; dim + 64 <= tile.layer.head_dim; dim += 64) weigh<T, R, 4>(tile, start, stop, weights, sums, dim);
    for (; dim < tile.layer.head_dim; dim += 16) weigh<T, R, 1>(tile, start, stop, weights, sums, dim);
}

template <class T, int R>
inline void weigh_rows(const RowTile<T>& tile, int64_t start, int64_t stop, AttentionScratch& scratch, int first) {
    const T* weights[R];
    float* sums[R];
    for (int r = 0; r < R; ++r) {
        if constexpr (sizeof(T) == 4)
            weights[r] = scratch.scores[first + r];
        else
            weights[r] = scratch.weights[first + r];
        sums[r] = scratch.sums[first + r];
    }
    weigh_tile<T, R>(tile, start, stop, weights, sums);
}

// All keys for R rows.
template <class T, int R>
inline void attend_rows(const RowTile<T>& tile, AttentionScratch& scratch) {
    const auto& layer = tile.layer;
    const int64_t head_dim = layer.head_dim;
    for (int r = 0; r < R; ++r) {
        scratch.peak[r] = kHidden;
        scratch.total[r] = 0.0f;
        std::fill_n(scratch.sums[r], head_dim, 0.0f);
    }
    const int64_t end = tile.position(R - 1) + 1;
    const int64_t begin = layer.window ? std::max<int64_t>(0, tile.position(0) - layer.window + 1) : 0;
    for (int64_t tile_start = begin - begin % kKeyTile; tile_start < end; tile_start += kKeyTile) {
        const int64_t start = std::max(tile_start, begin - begin % kGroup);
        const int64_t stop = std::min(end, tile_start + kKeyTile);
        score_tile<T, R>(tile, start, stop, scratch.scores);
        const int64_t count = (stop - start + kGroup - 1) / kGroup * kGroup;
        for (int r = 0; r < R; ++r) {
            const int64_t position = tile.position(r);
            const int64_t from = layer.window ? std::max<int64_t>(0, position - layer.window + 1 - start) : 0;
            const float keep = soften(scratch.scores[r], count, from, position + 1 - start, layer.softcap, scratch, r);
            for (int64_t d = 0; d < head_dim; d += 16)
                store(scratch.sums[r] + d, load<f32x16>(scratch.sums[r] + d) * keep);
            if constexpr (sizeof(T) == 2)
                for (int64_t i = 0; i < count; i += kGroup)
                    store(scratch.weights[r] + i, to_bf16(load<f32x16>(scratch.scores[r] + i)));
        }
        constexpr int half = R > 6 ? 6 : R;
        weigh_rows<T, half>(tile, start, stop, scratch, 0);
        if constexpr (R > half) weigh_rows<T, R - half>(tile, start, stop, scratch, half);
    }
    for (int r = 0; r < R; ++r) {
        const float scale = 1.0f / scratch.total[r];
        T* out = layer.out + tile.offset(r);
        for (int64_t d = 0; d < head_dim; d += 16) store_as(out + d, load<f32x16>(scratch.sums[r] + d) * scale);
    }
}

template <class T, int R = kMaxRows>
inline void attend_any(const RowTile<T>& tile, AttentionScratch& scratch) {
    if constexpr (R > 0) {
        if (tile.num_rows == R)
            attend_rows<T, R>(tile, scratch);
        else
            attend_any<T, R - 1>(tile, scratch);
    }
}

template <class T>
inline void attend(const AttentionLayer<T>& layer, const AttentionTask& task, AttentionScratch& scratch) {
    const int64_t rows = task.count * (layer.num_heads / layer.num_kv_heads);
    for (int64_t row = 0; row < rows; row += kMaxRows)
        attend_any<T>({layer, task, row, static_cast<int>(std::min<int64_t>(kMaxRows, rows - row))}, scratch);
}

// Puts one token's key and value of one KV head into its block.
inline void write_kv(const float* key, const float* value, float* key_block, float* value_block, int64_t offset,
                     int64_t head_dim, int64_t block_size) {
    for (int64_t d = 0; d < head_dim; ++d) key_block[d * block_size + offset] = key[d];
    std::copy_n(value, head_dim, value_block + offset * head_dim);
}

inline void write_kv(const float* key, const float* value, bf16* key_block, bf16* value_block, int64_t offset,
                     int64_t head_dim, int64_t block_size) {
    for (int64_t d = 0; d < head_dim; ++d)
        key_block[(d / 2 * block_size + offset) * 2 + d % 2] = to_bf16(key[d]);
    for (int64_t d = 0; d < head_dim; ++d)
        value_block[(offset / 2 * head_dim + d) * 2 + offset % 2] = to_bf16(value[d]);
}

}  // namespace JITNEY_ISA
