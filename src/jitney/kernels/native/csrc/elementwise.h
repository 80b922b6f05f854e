// The small operations between the products: norms, activations, rounding, rotary embedding.
#pragma once
#include <cmath>

#include "simd.h"

namespace JITNEY_ISA {

enum class Activation : int32_t { silu = 0, gelu_tanh = 1 };

inline f32x16 activate(f32x16 x, Activation activation) {
    if (activation == Activation::silu) return x / (exp(-x) + 1.0f);
    const f32x16 inner = (x * x * x * 0.044715f + x) * 0.7978845608028654f;
    return x * 0.5f * (tanh(inner) + 1.0f);
}

inline void store_as(float* to, f32x16 v) { store(to, v); }
inline void store_as(bf16* to, f32x16 v) { store(to, to_bf16(v)); }
inline float as_f32(float x) { return x; }
inline float as_f32(bf16 x) { return from_bf16(x); }
template <class T>
inline T from_f32(float x) {
    if constexpr (sizeof(T) == 4)
        return x;
    else
        return to_bf16(x);
}

// sum[i] += a[0] * b[2i] + a[1] * b[2i + 1] for 16 pairs of bf16.
inline void dot_pairs(f32x16& sum, const bf16* a, const bf16* b) {
    int32_t pair;
    std::memcpy(&pair, a, 4);
#ifdef __AVX512BF16__
    sum = (f32x16)_mm512_dpbf16_ps((__m512)sum, (__m512bh)_mm512_set1_epi32(pair), (__m512bh)load<__m512i>(b));
#else
    const i32x16 values = load<i32x16>(b);
    const i32x16 pairs = i32x16{} + pair;
    sum += (f32x16)(values << 16) * (f32x16)(pairs << 16);
    sum += (f32x16)(values & static_cast<int32_t>(0xffff0000)) * (f32x16)(pairs & static_cast<int32_t>(0xffff0000));
#endif
}

// RMSNorm (Zhang and Sennrich 2019): x / rms(x) * (offset + weight). n is a multiple of 16.
template <class T>
inline void rms_norm(const float* x, const float* weight, float offset, float eps, int64_t n, T* to) {
    f32x16 squares = splat(0.0f);
    for (int64_t i = 0; i < n; i += 16) {
        const f32x16 v = load<f32x16>(x + i);
        squares += v * v;
    }
    const float scale = 1.0f / std::sqrt(sum(squares) / static_cast<float>(n) + eps);
    for (int64_t i = 0; i < n; i += 16)
        store_as(to + i, load<f32x16>(x + i) * scale * (load<f32x16>(weight + i) + offset));
}

// Rotary embedding (Su et al. 2021) of the first 2 * half dimensions in place; halves are rotated against each other.
inline void rotate(float* x, const float* cos, const float* sin, int64_t half) {
    for (int64_t i = 0; i < half; ++i) {
        const float a = x[i], b = x[i + half];
        x[i] = a * cos[i] - b * sin[i];
        x[i + half] = b * cos[i] + a * sin[i];
    }
}

}  // namespace JITNEY_ISA
