// From one row of logits to one token: the most likely one, or one drawn after min-p, top-k and top-p.
//
// A row is worked on by one thread, in a fixed order: its token depends on nothing but its own logits, settings and
// position. Nothing is sorted that cannot be among the kept. The rules are those of runner/sampler.py.
#pragma once
#include <algorithm>
#include <cmath>

#include "kernels.h"
#include "simd.h"

namespace JITNEY_ISA {

using jitney::SlotSampling;

constexpr int64_t kBlock = 64;  // neighbouring tokens whose weights are summed up together

// Uniform in [0, 1), a function of stream and position alone: SplitMix64 (Steele, Lea and Flood 2014).
inline double uniform(uint64_t stream, int64_t position) {
    uint64_t x = stream + (static_cast<uint64_t>(position) + 1) * 0x9E3779B97F4A7C15ull;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
    return static_cast<double>((x ^ (x >> 31)) >> 11) * 0x1p-53;
}

// Index of the first highest value; valid if that is finite and nothing is NaN.
inline void argmax(const float* logits, int64_t n, int32_t* token, uint8_t* is_valid) {
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

class Draw {
public:
    Draw(const float* logits, int64_t n, float top, const SlotSampling& choice, jitney::SamplingScratch& scratch)
        : n_(n), choice_(choice), s_(scratch) {
        const int64_t blocks = (n + kBlock - 1) / kBlock;
        s_.scaled.assign(blocks * kBlock, -INFINITY);
        s_.weights.resize(blocks * kBlock);
        s_.sums.resize(blocks);
        s_.peaks.resize(blocks);
        // With the maximum at 0 no temperature, however small, can overflow, and min-p is a constant threshold.
        for (int64_t i = 0; i < n; ++i) {
            const float x = (logits[i] - top) / choice.temperature;
            s_.scaled[i] = x < choice.log_min_p ? -INFINITY : x;
        }
        for (int64_t block = 0; block < blocks; ++block) weigh(block);
    }

    int32_t token(double uniform) {
        const bool is_filtered = choice_.top_k > 0 || choice_.top_p < 1.0;
        return is_filtered ? draw_from_kept(uniform) : draw_from_all(uniform);
    }

private:
    void weigh(int64_t block) {
        f32x16 peak = splat(-INFINITY), sums = splat(0.0f);
        for (int64_t i = block * kBlock; i < (block + 1) * kBlock; i += 16) {
            const f32x16 x = load<f32x16>(s_.scaled.data() + i);
            const f32x16 weight = exp(x);
            store(s_.weights.data() + i, weight);
            peak = max(peak, x);
            sums += weight;
        }
        s_.peaks[block] = highest(peak);
        s_.sums[block] = sum(sums);
    }

    double total() const {
        double all = 0.0;
        for (const float part : s_.sums) all += part;
        return all;
    }

    // The first token at which the weights, added up in vocabulary order, exceed uniform * total.
    int32_t draw_from_all(double uniform) const {
        const double target = uniform * total();
        double before = 0.0;
        size_t block = 0;
        while (block + 1 < s_.sums.size() && before + s_.sums[block] <= target) before += s_.sums[block++];
        while (s_.sums[block] == 0.0f) --block;  // rounding may lead past the last weight
        int64_t chosen = 0;
        for (int64_t i = block * kBlock; i < std::min<int64_t>(n_, (block + 1) * kBlock); ++i) {
            if (s_.weights[i] == 0.0f) continue;
            chosen = i;
            before += s_.weights[i];
            if (before > target) break;
        }
        return static_cast<int32_t>(chosen);
    }

    int32_t draw_from_kept(double uniform) {
        auto& kept = s_.kept;
        keep();
        std::sort(kept.begin(), kept.end());
        double all = 0.0;
        for (const int32_t id : kept) all += s_.weights[id];
        const double target = uniform * all;
        double before = 0.0;
        for (const int32_t id : kept)
            if ((before += s_.weights[id]) > target) return id;
        return kept.back();
    }

    // Fills `kept`, the most likely first; among equals the lowest ids.
    void keep() {
        auto &candidates = s_.candidates, &kept = s_.kept;
        const auto is_behind = [this](int32_t a, int32_t b) {
            return s_.scaled[a] != s_.scaled[b] ? s_.scaled[a] < s_.scaled[b] : a > b;
        };
        find_candidates();
        std::make_heap(candidates.begin(), candidates.end(), is_behind);
        kept.clear();
        const auto take = [&] {
            std::pop_heap(candidates.begin(), candidates.end(), is_behind);
            kept.push_back(candidates.back());
            candidates.pop_back();
        };
        double mass = total();
        if (choice_.top_k > 0) {
            mass = 0.0;
            while (!candidates.empty() && kept.size() < static_cast<size_t>(choice_.top_k)) {
                take();
                mass += s_.weights[kept.back()];
            }
        }
        if (!(choice_.top_p < 1.0)) return;
        const double enough = choice_.top_p * mass;
        double reached = 0.0;
        size_t count = 0;
        while (reached < enough) {
            if (count == kept.size()) {
                if (choice_.top_k > 0 || candidates.empty()) break;
                take();
            }
            reached += s_.weights[kept[count++]];
        }
        kept.resize(std::max<size_t>(count, 1));
    }

    // Tokens that may be among the kept. The k highest of the blocks' peaks are k tokens, so none below the lowest of
    // them is in the top k. All tokens lighter than (1 - p) / n of the total together miss the nucleus; half of that
    // leaves room for rounding.
    void find_candidates() {
        float least = -INFINITY;
        const auto k = static_cast<size_t>(choice_.top_k);
        if (k > 0 && k <= s_.peaks.size()) {
            s_.ordered = s_.peaks;
            std::nth_element(s_.ordered.begin(), s_.ordered.begin() + (k - 1), s_.ordered.end(), std::greater<>());
            least = s_.ordered[k - 1];
        }
        const double share = k == 0 ? (1.0 - choice_.top_p) / (2.0 * static_cast<double>(n_)) * total() : 0.0;
        const float lightest = static_cast<float>(share);
        s_.candidates.clear();
        for (int64_t i = 0; i < n_; ++i)
            if (s_.scaled[i] >= least && s_.weights[i] > 0.0f && s_.weights[i] >= lightest)
                s_.candidates.push_back(static_cast<int32_t>(i));
    }

    const int64_t n_;
    const SlotSampling& choice_;
    jitney::SamplingScratch& s_;
};

inline void sample(const float* logits, int64_t n, const SlotSampling& choice, int64_t position,
                   jitney::SamplingScratch& scratch, int32_t* token, uint8_t* is_valid) {
    argmax(logits, n, token, is_valid);
    if (choice.is_random && *is_valid)
        *token = Draw(logits, n, logits[*token], choice, scratch).token(uniform(choice.stream, position));
}

}  // namespace JITNEY_ISA
