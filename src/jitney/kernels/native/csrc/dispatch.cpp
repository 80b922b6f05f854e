#include <cstring>

#include "kernels.h"

#define JITNEY_DECLARE(isa) \
    namespace isa {         \
    extern const jitney::KernelTable table; \
    }
JITNEY_DECLARE(generic)
#ifdef __x86_64__
JITNEY_DECLARE(avx2)
JITNEY_DECLARE(avx512)
JITNEY_DECLARE(avx512bf16)
#endif

namespace jitney {

namespace {
bool runs_here(const char* name) {
    if (!std::strcmp(name, "generic")) return true;
#ifdef __x86_64__
    __builtin_cpu_init();
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
    if (!std::strcmp(name, "avx2")) return avx2;
    if (!std::strcmp(name, "avx512")) return avx512;
    if (!std::strcmp(name, "avx512bf16")) return avx512 && __builtin_cpu_supports("avx512bf16");
#endif
    return false;
}

const KernelTable* const tables[] = {
#ifdef __x86_64__
    &avx512bf16::table, &avx512::table, &avx2::table,
#endif
    &generic::table,
};
}  // namespace

const KernelTable* choose_kernels(const char* name) {
    for (const KernelTable* table : tables)
        if ((!name || !std::strcmp(name, table->name)) && runs_here(table->name)) return table;
    return nullptr;
}

}  // namespace jitney
