// Weights packed for the matrix product: panels of 32 output columns, the inner dimension running fastest but for the
// two values that one dot instruction takes together.
//
//     float32: [panel][k][32]        bfloat16: [panel][k / 2][32][2]
//
// Columns past n are zero. Packed once at load; nothing else of the weights is kept.
#pragma once
#include <cstdint>

namespace jitney {

constexpr int kPanelColumns = 32;

enum class Type : int32_t { f32 = 0, bf16 = 1 };

inline int64_t size_of(Type type) { return type == Type::f32 ? 4 : 2; }

struct PackedMatrix {
    Type type = Type::f32;
    int64_t n = 0;  // output columns (rows of the checkpoint's tensor)
    int64_t k = 0;  // inner dimension, even
    void* data = nullptr;

    int64_t num_panels() const { return (n + kPanelColumns - 1) / kPanelColumns; }
    int64_t panel_bytes() const { return kPanelColumns * k * size_of(type); }
    int64_t bytes() const { return num_panels() * panel_bytes(); }
    const char* panel(int64_t index) const { return static_cast<const char*>(data) + index * panel_bytes(); }
};

}  // namespace jitney
