// From the checkpoint's rows (float32, float16 or bfloat16) to panels, without a second copy of the matrix.
#pragma once
#include <vector>

#include "elementwise.h"
#include "panels.h"
#include "thread_pool.h"

namespace JITNEY_ISA {

enum class Source : int32_t { f32 = 0, f16 = 1, bf16 = 2 };

// By arithmetic, for compilers without a type for it: exponent and fraction move to their places in a float32, whose
// exponent is then too small by 112.
inline float from_f16(uint16_t x) {
    uint32_t bits = static_cast<uint32_t>(x & 0x7fff) << 13;
    float value;
    if (bits >= 0x0f800000) {  // infinity or NaN
        bits |= 0x7f800000;
        std::memcpy(&value, &bits, 4);
    } else {
        std::memcpy(&value, &bits, 4);
        value *= 0x1p112f;
    }
    return x & 0x8000 ? -value : value;
}

inline uint16_t half_at(const uint8_t* p) {
    uint16_t x;
    std::memcpy(&x, p, 2);
    return x;
}

inline int64_t row_bytes(Source source, int64_t k) { return (source == Source::f32 ? 4 : 2) * k; }

// One row as float32.
inline void read_row(Source source, const uint8_t* from, int64_t k, float* to) {
    if (source == Source::f32) {
        std::memcpy(to, from, 4 * k);
        return;
    }
    for (int64_t i = 0; i < k; ++i) {
        const uint16_t bits = half_at(from + 2 * i);
        to[i] = source == Source::f16 ? from_f16(bits) : from_bf16(bits);
    }
}

// Row r of `source` becomes column columns[r] of the packed matrix.
template <class T>
void pack_rows(const jitney::PackedMatrix& to, Source source, const uint8_t* from, int64_t rows, const int32_t* columns,
               jitney::ThreadPool& pool) {
    const int64_t bytes = row_bytes(source, to.k), piece = 64;
    constexpr int64_t step = sizeof(T) == 2 ? 2 : 1;
    std::vector<float> scratch(pool.size() * to.k);
    pool.run((rows + piece - 1) / piece, [&](int64_t index, int thread) {
        float* row = scratch.data() + thread * to.k;
        for (int64_t r = index * piece; r < std::min(rows, (index + 1) * piece); ++r) {
            read_row(source, from + r * bytes, to.k, row);
            T* panel = reinterpret_cast<T*>(const_cast<char*>(to.panel(columns[r] / 32)));
            for (int64_t i = 0; i < to.k; ++i)
                panel[(i / step * 32 + columns[r] % 32) * step + i % step] = from_f32<T>(row[i]);
        }
    });
}

}  // namespace JITNEY_ISA
