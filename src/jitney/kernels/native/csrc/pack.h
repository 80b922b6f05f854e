// From the checkpoint's rows (float32, float16, bfloat16, or GGUF's Q4_0, Q4_1, Q8_0) to panels, without a second copy.
#pragma once
#include <vector>

#include "elementwise.h"
#include "panels.h"
#include "thread_pool.h"

namespace JITNEY_ISA {

enum class Source : int32_t { f32 = 0, f16 = 1, bf16 = 2, q4_0 = 3, q4_1 = 4, q8_0 = 5 };

inline float from_f16(uint16_t x) {
    _Float16 value;
    std::memcpy(&value, &x, 2);
    return static_cast<float>(value);
}

inline uint16_t half_at(const uint8_t* p) {
    uint16_t x;
    std::memcpy(&x, p, 2);
    return x;
}

inline int64_t row_bytes(Source source, int64_t k) {
    switch (source) {
        case Source::f32: return 4 * k;
        case Source::f16:
        case Source::bf16: return 2 * k;
        case Source::q4_0: return k / 32 * 18;
        case Source::q4_1: return k / 32 * 20;
        case Source::q8_0: return k / 32 * 34;
    }
    return 0;
}

// One row as float32. The quantised formats are groups of 32: a scale (and a minimum), then the quants.
inline void read_row(Source source, const uint8_t* from, int64_t k, float* to) {
    for (int64_t i = 0; i < k; i += 32) {
        const int64_t n = k - i < 32 ? k - i : 32;
        switch (source) {
            case Source::f32: std::memcpy(to + i, from + 4 * i, 4 * n); break;
            case Source::f16:
                for (int64_t j = 0; j < n; ++j) to[i + j] = from_f16(half_at(from + 2 * (i + j)));
                break;
            case Source::bf16:
                for (int64_t j = 0; j < n; ++j) to[i + j] = from_bf16(half_at(from + 2 * (i + j)));
                break;
            case Source::q4_0:
            case Source::q4_1: {
                const bool has_minimum = source == Source::q4_1;
                const uint8_t* group = from + i / 32 * (has_minimum ? 20 : 18);
                const float scale = from_f16(half_at(group));
                const float minimum = has_minimum ? from_f16(half_at(group + 2)) : -8.0f * scale;
                const uint8_t* quants = group + (has_minimum ? 4 : 2);
                for (int j = 0; j < 16; ++j) {
                    to[i + j] = static_cast<float>(quants[j] & 15) * scale + minimum;
                    to[i + j + 16] = static_cast<float>(quants[j] >> 4) * scale + minimum;
                }
                break;
            }
            case Source::q8_0: {
                const uint8_t* group = from + i / 32 * 34;
                const float scale = from_f16(half_at(group));
                for (int j = 0; j < 32; ++j) to[i + j] = static_cast<float>(static_cast<int8_t>(group[2 + j])) * scale;
                break;
            }
        }
    }
}

// Row r of `source` becomes column columns[r] of the packed matrix.
template <class T>
void pack_rows(const jitney::PackedMatrix& to, Source source, const uint8_t* from, int64_t rows, const int32_t* columns,
               jitney::ThreadPool& pool) {
    const int64_t bytes = row_bytes(source, to.k), piece = 64;
    constexpr int64_t step = sizeof(T) == 2 ? 2 : 1;
    pool.run((rows + piece - 1) / piece, [&](int64_t index, int) {
        std::vector<float> row(to.k);
        for (int64_t r = index * piece; r < std::min(rows, (index + 1) * piece); ++r) {
            read_row(source, from + r * bytes, to.k, row.data());
            T* panel = reinterpret_cast<T*>(const_cast<char*>(to.panel(columns[r] / 32)));
            for (int64_t i = 0; i < to.k; ++i)
                panel[(i / step * 32 + columns[r] % 32) * step + i % step] = from_f32<T>(row[i]);
        }
    });
}

}  // namespace JITNEY_ISA
