// The C ABI that kernels/native/library.py speaks through ctypes, which lets go of Python's lock during each call.
// Shapes and types are checked on the Python side; what cannot be checked there returns null or a non-zero code.
#include <sys/mman.h>

#include <memory>
#include <new>

#include "kernels.h"

using namespace jitney;

namespace {

// Zeroed memory in huge pages where the system grants them; given back with the engine.
struct Region {
    void* data = nullptr;
    size_t bytes = 0;
    explicit Region(size_t size) : bytes((size + (1 << 21)) >> 21 << 21) {
        data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (data == MAP_FAILED) throw std::bad_alloc();
#ifdef MADV_HUGEPAGE
        madvise(data, bytes, MADV_HUGEPAGE);
#endif
    }
    Region(const Region&) = delete;
    Region& operator=(const Region&) = delete;
    ~Region() { munmap(data, bytes); }
};

struct Engine {
    const KernelTable* kernels;
    ThreadPool pool;
    Decoder decoder;
    std::vector<std::unique_ptr<Region>> regions;

    Engine(const KernelTable* table, int threads, const ModelConfig& config) : kernels(table), pool(threads) {
        decoder.config = config;
        decoder.layers.resize(config.num_layers);
    }

    void* allocate(int64_t bytes) {
        regions.push_back(std::make_unique<Region>(static_cast<size_t>(bytes)));
        return regions.back()->data;
    }

    void shape(PackedMatrix& matrix, int64_t n, int64_t k) {
        matrix.type = static_cast<Type>(decoder.config.type);
        matrix.n = n;
        matrix.k = k;
        matrix.data = allocate(matrix.bytes());
    }
};

PackedMatrix* matrix_of(Engine& engine, int32_t layer, int32_t which) {
    auto& d = engine.decoder;
    if (layer < 0) return which == 0 ? &d.head : &d.embedding;
    Layer& l = d.layers[layer];
    PackedMatrix* of[] = {&l.qkv, &l.out, &l.gate_up, &l.down};
    return of[which];
}

std::vector<float>* vector_of(Engine& engine, int32_t layer, int32_t which) {
    if (layer < 0) return &engine.decoder.final_norm;
    Layer& l = engine.decoder.layers[layer];
    std::vector<float>* of[] = {&l.input_norm, &l.after_attention_norm, &l.mlp_norm, &l.after_mlp_norm,
                                &l.query_norm, &l.key_norm,             &l.qkv_bias};
    return of[which];
}

}  // namespace

extern "C" {

// The instruction set that would be used ("" if the named one does not run here).
const char* jitney_isa(const char* name) {
    const KernelTable* table = choose_kernels(name && *name ? name : nullptr);
    return table ? table->name : "";
}

void* jitney_new(const ModelConfig* config, const char* isa, int32_t num_threads) {
    const KernelTable* table = choose_kernels(isa && *isa ? isa : nullptr);
    if (!table) return nullptr;
    try {
        auto engine = std::make_unique<Engine>(table, num_threads, *config);
        const int64_t d = config->head_dim, heads = config->num_heads + 2 * config->num_kv_heads;
        for (Layer& layer : engine->decoder.layers) {
            engine->shape(layer.qkv, heads * d, config->hidden);
            engine->shape(layer.out, config->hidden, config->num_heads * d);
            engine->shape(layer.gate_up, 2 * int64_t{config->intermediate}, config->hidden);
            engine->shape(layer.down, config->hidden, config->intermediate);
        }
        engine->shape(engine->decoder.head, config->vocab, config->hidden);
        return engine.release();
    } catch (const std::exception&) {
        return nullptr;
    }
}

void jitney_free(void* engine) { delete static_cast<Engine*>(engine); }

// An embedding that is not the head's.
int32_t jitney_untie(void* handle) {
    auto& engine = *static_cast<Engine*>(handle);
    try {
        engine.shape(engine.decoder.embedding, engine.decoder.config.vocab, engine.decoder.config.hidden);
    } catch (const std::exception&) {
        return 1;
    }
    return 0;
}

// Rows of a checkpoint's tensor become columns `columns` of a packed matrix.
int32_t jitney_pack(void* handle, int32_t layer, int32_t which, const void* source, int32_t source_type, int64_t rows,
                    const int32_t* columns) {
    auto& engine = *static_cast<Engine*>(handle);
    try {
        engine.kernels->pack(*matrix_of(engine, layer, which), source, source_type, rows, columns, engine.pool);
    } catch (const std::exception&) {
        return 1;
    }
    return 0;
}

int32_t jitney_vector(void* handle, int32_t layer, int32_t which, const float* values, int64_t count) {
    try {
        vector_of(*static_cast<Engine*>(handle), layer, which)->assign(values, values + count);
    } catch (const std::exception&) {
        return 1;
    }
    return 0;
}

// The tables are the caller's and must outlive the engine.
void jitney_attention(void* handle, int32_t layer, const float* cos, const float* sin, int64_t window) {
    Layer& l = static_cast<Engine*>(handle)->decoder.layers[layer];
    l.cos = cos;
    l.sin = sin;
    l.window = window;
}

int32_t jitney_forward(void* handle, const StepArgs* step) {
    auto& engine = *static_cast<Engine*>(handle);
    try {
        engine.kernels->forward(engine.decoder, engine.pool, *step);
    } catch (const std::exception&) {
        return 1;
    }
    return 0;
}

int32_t jitney_sample(void* handle, const SampleArgs* args) {
    auto& engine = *static_cast<Engine*>(handle);
    const SampleArgs& a = *args;
    try {
        engine.decoder.sampling.resize(engine.pool.size());
        for (auto& scratch : engine.decoder.sampling) scratch.reserve(a.vocab);
        engine.pool.run(a.num_rows, [&](int64_t row, int thread) {
            const int32_t slot = a.slots[row];
            engine.kernels->sample(a.logits + row * a.vocab, a.vocab, a.sampling[slot], a.positions[row],
                                   engine.decoder.sampling[thread], a.tokens + row, a.is_valid + row);
            a.last_tokens[slot] = a.tokens[row];
        });
    } catch (const std::exception&) {
        return 1;
    }
    return 0;
}
}
