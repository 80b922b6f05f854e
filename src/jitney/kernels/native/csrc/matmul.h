// c = a * b for packed b, a tile of rows at a time against one panel of 32 columns held in registers.
//
// A row's sum over k runs in one fixed order whatever the tile's height, so a row's result does not depend on the rows
// beside it (batch invariance).
#pragma once
#include "elementwise.h"
#include "panels.h"
#include "simd.h"

namespace JITNEY_ISA {

#if defined(__AVX512F__)
constexpr int kTileRows = 12;  // 24 of the 32 registers hold sums
#else
constexpr int kTileRows = 2;
#endif
constexpr int64_t kPrefetchBytes = 2048;

template <int R>
struct Tile {
    f32x16 sums[R][2];
};

template <int R>
inline void multiply(Tile<R>& tile, const float* a, int64_t lda, const float* panel, int64_t k) {
    for (int r = 0; r < R; ++r) tile.sums[r][0] = tile.sums[r][1] = splat(0.0f);
    for (int64_t i = 0; i < k; ++i) {
        const float* b = panel + 32 * i;
        __builtin_prefetch(reinterpret_cast<const char*>(b) + kPrefetchBytes);
        __builtin_prefetch(reinterpret_cast<const char*>(b) + kPrefetchBytes + 64);
        const f32x16 b0 = load<f32x16>(b), b1 = load<f32x16>(b + 16);
        for (int r = 0; r < R; ++r) {
            const f32x16 x = splat(a[r * lda + i]);
            tile.sums[r][0] += x * b0;
            tile.sums[r][1] += x * b1;
        }
    }
}

template <int R>
inline void multiply(Tile<R>& tile, const bf16* a, int64_t lda, const bf16* panel, int64_t k) {
    for (int r = 0; r < R; ++r) tile.sums[r][0] = tile.sums[r][1] = splat(0.0f);
    for (int64_t i = 0; i < k; i += 2) {
        const bf16* b = panel + 32 * i;
        __builtin_prefetch(reinterpret_cast<const char*>(b) + kPrefetchBytes);
        __builtin_prefetch(reinterpret_cast<const char*>(b) + kPrefetchBytes + 64);
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
inline void one_tile(const Product<T>& p, int64_t row, int64_t panel) {
    Tile<R> tile;
    multiply<R>(tile, p.a + row * p.lda, p.lda, reinterpret_cast<const T*>(p.b->panel(panel)), p.b->k);
    finish_tile<T, R>(p, tile, row, panel);
}

template <class T, int R = kTileRows - 1>
inline void last_tile(const Product<T>& p, int64_t row, int64_t panel) {
    if constexpr (R > 0) {
        if (p.m - row == R)
            one_tile<T, R>(p, row, panel);
        else
            last_tile<T, R - 1>(p, row, panel);
    }
}

// All rows against one panel.
template <class T>
inline void multiply_panel(const Product<T>& p, int64_t panel) {
    int64_t row = 0;
    for (; row + kTileRows <= p.m; row += kTileRows) one_tile<T, kTileRows>(p, row, panel);
    last_tile<T>(p, row, panel);
}

}  // namespace JITNEY_ISA
