// What one instruction set offers: the table that dispatch.cpp chooses from.
#pragma once
#include "model.h"
#include "thread_pool.h"

namespace jitney {

// Scratch that grows to the largest step seen and is then reused.
struct Workspace {
    std::vector<char> hidden, normed, projected, query, attended, gated, wanted_hidden, wanted_attended, scratch;
};

// One thread's, for one row at a time.
struct SamplingScratch {
    std::vector<float> scaled, weights, sums, peaks, ordered;
    std::vector<int32_t> candidates, kept;

    // So that no thread of the pool runs out of memory, where nobody could hear of it.
    void reserve(size_t vocab) {
        for (auto* values : {&scaled, &weights, &sums, &peaks, &ordered}) values->reserve(vocab + 64);
        candidates.reserve(vocab);
        kept.reserve(vocab);
    }
};

struct Decoder {
    ModelConfig config;
    std::vector<Layer> layers;
    PackedMatrix head;       // also the embedding, unless `embedding` is set
    PackedMatrix embedding;  // data null: tied
    std::vector<float> final_norm;
    Workspace workspace;
    std::vector<SamplingScratch> sampling;  // [threads]
};

struct KernelTable {
    const char* name;
    void (*forward)(Decoder&, ThreadPool&, const StepArgs&);
    void (*sample)(const float* logits, int64_t n, const SlotSampling&, int64_t position, SamplingScratch&,
                   int32_t* token, uint8_t* is_valid);
    void (*pack)(const PackedMatrix&, const void* source, int32_t source_type, int64_t rows, const int32_t* columns,
                 ThreadPool&);
};

// The best table this machine can run, or the named one; null if it cannot.
const KernelTable* choose_kernels(const char* name);

}  // namespace jitney
