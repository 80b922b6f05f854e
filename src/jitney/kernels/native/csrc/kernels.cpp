// Compiled once per instruction set, with JITNEY_ISA and the compiler's target set by the build.
#include "kernels.h"

#include "forward.h"
#include "pack.h"

#define JITNEY_TEXT_(x) #x
#define JITNEY_TEXT(x) JITNEY_TEXT_(x)

namespace JITNEY_ISA {
namespace {

void forward(Decoder& model, ThreadPool& pool, const StepArgs& step) {
    if (model.config.type == static_cast<int32_t>(jitney::Type::bf16))
        Forward<bf16>(model, pool, step).run();
    else
        Forward<float>(model, pool, step).run();
}

// Index of the first highest value; valid if that is finite (NaN anywhere, or +inf, is not).
void argmax(const float* logits, int64_t n, int32_t* token, uint8_t* is_valid) {
    f32x16 tops = splat(-INFINITY), odd = splat(0.0f);
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) {
        const f32x16 v = load<f32x16>(logits + i);
        odd += v - v;  // NaN if v is NaN or infinite; -inf is looked at again below
        tops = max(tops, v);
    }
    float top = highest(tops);
    bool has_nan = !(sum(odd) == 0.0f);
    for (; i < n; ++i) {
        has_nan |= logits[i] != logits[i];
        top = logits[i] > top ? logits[i] : top;
    }
    if (has_nan) {
        has_nan = false;
        for (int64_t j = 0; j < n; ++j) has_nan |= logits[j] != logits[j];
    }
    int64_t index = 0;
    while (index < n - 1 && logits[index] != top) ++index;
    *token = static_cast<int32_t>(index);
    *is_valid = !has_nan && std::isfinite(top);
}

void pack(const PackedMatrix& to, const void* source, int32_t source_type, int64_t rows, const int32_t* columns,
          ThreadPool& pool) {
    const auto* from = static_cast<const uint8_t*>(source);
    if (to.type == jitney::Type::bf16)
        pack_rows<bf16>(to, static_cast<Source>(source_type), from, rows, columns, pool);
    else
        pack_rows<float>(to, static_cast<Source>(source_type), from, rows, columns, pool);
}

}  // namespace

extern const jitney::KernelTable table;
const jitney::KernelTable table{JITNEY_TEXT(JITNEY_ISA), forward, argmax, pack};

}  // namespace JITNEY_ISA
