// Compiled once per instruction set, with JITNEY_ISA and the compiler's target set by the build.
#include "kernels.h"

#include "forward.h"
#include "pack.h"
#include "sampling.h"

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
const jitney::KernelTable table{JITNEY_TEXT(JITNEY_ISA), forward, sample, pack};

}  // namespace JITNEY_ISA
