// Sixteen floats at a time, in GCC's vector extensions: the compiler maps them to whatever registers the target has.
//
// Every file that includes this is compiled once per instruction set, inside namespace JITNEY_ISA.
#pragma once
#include <cstdint>
#include <cstring>
#ifdef __AVX512F__
#include <immintrin.h>
#endif

namespace JITNEY_ISA {

typedef float f32x16 __attribute__((vector_size(64)));
typedef int32_t i32x16 __attribute__((vector_size(64)));
typedef uint32_t u32x16 __attribute__((vector_size(64)));
typedef uint16_t u16x16 __attribute__((vector_size(32)));

using bf16 = uint16_t;

template <class V, class T>
inline V load(const T* from) {
    V v;
    std::memcpy(&v, from, sizeof(V));
    return v;
}

template <class V, class T>
inline void store(T* to, V v) {
    std::memcpy(to, &v, sizeof(V));
}

inline f32x16 splat(float x) { return f32x16{} + x; }

inline f32x16 max(f32x16 a, f32x16 b) { return a > b ? a : b; }
inline f32x16 min(f32x16 a, f32x16 b) { return a < b ? a : b; }

inline float sum(f32x16 v) {
    float lanes[16];
    store(lanes, v);
    for (int half = 8; half; half /= 2)
        for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
    return lanes[0];
}

inline float highest(f32x16 v) {
    float lanes[16];
    store(lanes, v);
    for (int half = 8; half; half /= 2)
        for (int i = 0; i < half; ++i) lanes[i] = lanes[i + half] > lanes[i] ? lanes[i + half] : lanes[i];
    return lanes[0];
}

// bf16, rounded to nearest even; NaN stays NaN.
inline bf16 to_bf16(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    if ((bits & 0x7fffffff) > 0x7f800000) return static_cast<bf16>((bits >> 16) | 0x40);
    return static_cast<bf16>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

inline float from_bf16(bf16 x) {
    uint32_t bits = static_cast<uint32_t>(x) << 16;
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}

inline u16x16 to_bf16(f32x16 v) {
#ifdef __AVX512BF16__
    return (u16x16)_mm512_cvtneps_pbh((__m512)v);
#else
    u32x16 bits = (u32x16)v;
    u32x16 rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    u32x16 is_nan = (u32x16)((bits & 0x7fffffff) > 0x7f800000);
    return __builtin_convertvector((is_nan & ((bits >> 16) | 0x40)) | (~is_nan & rounded), u16x16);
#endif
}

inline f32x16 from_bf16(u16x16 v) { return (f32x16)(__builtin_convertvector(v, u32x16) << 16); }

// e^x to about 1e-7 relative; 0 below -87.3, e^88 above 88, NaN for NaN. (Cody-Waite reduction, Cephes polynomial.)
inline f32x16 exp(f32x16 x) {
    const f32x16 magic = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
    f32x16 clamped = min(max(x, splat(-87.3f)), splat(88.0f));
    f32x16 shifted = clamped * 1.44269504088896341f + magic;
    f32x16 n = shifted - magic;
    f32x16 r = clamped - n * 0.693359375f;
    r = r - n * -2.12194440e-4f;
    f32x16 p = splat(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    i32x16 exponent = ((i32x16)shifted - (i32x16)magic) << 23;
    f32x16 result = (f32x16)((i32x16)p + exponent);
    return x < splat(-87.3f) ? splat(0.0f) : (x == x ? result : x);
}

inline f32x16 tanh(f32x16 x) {
    f32x16 e = exp(min(max(x * 2.0f, splat(-80.0f)), splat(80.0f)));
    return x == x ? (e - 1.0f) / (e + 1.0f) : x;  // NaN stays NaN
}

}  // namespace JITNEY_ISA
