// c = a * b for packed b, a tile of rows at a time against one panel of 32 columns held in registers.
//
// A row's sum over k runs in one fixed order whatever the tile's height, so a row's result does not depend on the rows
// beside it (batch invariance).
#pragma once
#include <algorithm>

#include "elementwise.h"
#include "panels.h"
#include "simd.h"

namespace JITNEY_ISA {

#if defined(__AVX512F__)
constexpr int kTileRows = 12;  // 24 of the 32 registers hold sums
#else
constexpr int kTileRows = 2;
#endif

template <int R>
struct Tile {
    f32x16 sums[R][2];
};

// Bytes that will be wanted soon: each step through k asks for `per_step` of them, so that the next panel comes from
// memory while this one is multiplied.
struct Ahead {
    const char* next;
    int64_t per_step;

    void fetch() {
        for (int64_t i = 0; i < per_step; i += 64) __builtin_prefetch(next + i);
        next += per_step;
    }
};

template <int R>
inline void multiply(Tile<R>& tile, const float* a, int64_t lda, const float* panel, int64_t k, Ahead ahead) {
    for (int r = 0; r < R; ++r) tile.sums[r][0] = tile.sums[r][1] = splat(0.0f);
    for (int64_t i = 0; i < k; ++i) {
        const float* b = panel + 32 * i;
        ahead.fetch();
        const f32x16 b0 = load<f32x16>(b), b1 = load<f32x16>(b + 16);
        for (int r = 0; r < R; ++r) {
            const f32x16 x = splat(a[r * lda + i]);
            tile.sums[r][0] += x * b0;
            tile.sums[r][1] += x * b1;
        }
    }
}

template <int R>
inline void multiply(Tile<R>& tile, const bf16* a, int64_t lda, const bf16* panel, int64_t k, Ahead ahead) {
    for (int r = 0; r < R; ++r) tile.sums[r][0] = tile.sums[r][1] = splat(0.0f);
    for (int64_t i = 0; i < k; i += 2) {
        const bf16* b = panel + 32 * i;
        ahead.fetch();
        for (int r = 0; r < R; ++r) {
            dot_pairs(tile.sums[r][0], a + r * lda + i, b);
            dot_pairs(tile.sums[r][1], a + r * lda + i, b + 32);
        }
    }
}

// What becomes of a finished tile.
enum class Finish { store, add, gate };

template <class T>
struct Product {
    const T* a;  // [m, k]
    int64_t lda;
    int64_t m;
    const jitney::PackedMatrix* b;
    const float* bias;  // [n] or null
    Finish finish;
    float* c;  // store, add: [m, n]
    int64_t ldc;
    T* gated;  // gate: [m, n / 2]; columns of a panel are 16 of the gate, then the 16 of `up` that go with them
    int64_t ldg;
    Activation activation;
};

template <class T, int R>
inline void finish_tile(const Product<T>& p, const Tile<R>& tile, int64_t row, int64_t panel) {
    const int64_t column = panel * 32;
    const int64_t width = p.b->n - column < 32 ? p.b->n - column : 32;
    for (int r = 0; r < R; ++r) {
        f32x16 low = tile.sums[r][0], high = tile.sums[r][1];
        if (p.finish == Finish::gate) {
            store_as(p.gated + (row + r) * p.ldg + column / 2, activate(low, p.activation) * high);
            continue;
        }
        float* to = p.c + (row + r) * p.ldc + column;
        if (width < 32) {
            float lanes[32];
            store(lanes, low);
            store(lanes + 16, high);
            for (int64_t i = 0; i < width; ++i)
                to[i] = lanes[i] + (p.bias ? p.bias[column + i] : 0.0f) + (p.finish == Finish::add ? to[i] : 0.0f);
            continue;
        }
        if (p.bias) {
            low += load<f32x16>(p.bias + column);
            high += load<f32x16>(p.bias + column + 16);
        }
        if (p.finish == Finish::add) {
            low += load<f32x16>(to);
            high += load<f32x16>(to + 16);
        }
        store(to, low);
        store(to + 16, high);
    }
}

template <class T, int R>
inline void one_tile(const Product<T>& p, int64_t row, int64_t panel, Ahead ahead) {
    Tile<R> tile;
    multiply<R>(tile, p.a + row * p.lda, p.lda, reinterpret_cast<const T*>(p.b->panel(panel)), p.b->k, ahead);
    finish_tile<T, R>(p, tile, row, panel);
}

template <class T, int R = kTileRows>
inline void any_tile(const Product<T>& p, int rows, int64_t row, int64_t panel, Ahead ahead) {
    if constexpr (R > 0) {
        if (rows == R)
            one_tile<T, R>(p, row, panel, ahead);
        else
            any_tile<T, R - 1>(p, rows, row, panel, ahead);
    }
}

// All rows against one panel, in tiles of nearly equal height.
template <class T>
inline void multiply_panel(const Product<T>& p, int64_t panel) {
    const int64_t tiles = (p.m + kTileRows - 1) / kTileRows;
    // The following panel is spread over the first tiles, a few lines of 64 bytes at each step.
    constexpr int64_t step = sizeof(T) == 2 ? 2 : 1;
    const int64_t fetching = std::min<int64_t>(tiles, 2);
    const int64_t steps = p.b->k / step, bytes = p.b->panel_bytes() / fetching;
    for (int64_t tile = 0; tile < tiles; ++tile) {
        const int64_t row = p.m * tile / tiles, rows = p.m * (tile + 1) / tiles - row;
        const char* next = p.b->panel(panel + 1) + tile * bytes;
        any_tile<T>(p, static_cast<int>(rows), row, panel, {next, tile < fetching ? bytes / steps : 0});
    }
}

}  // namespace JITNEY_ISA
