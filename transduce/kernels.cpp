// Linear maps and whole stacks of layers for inference on a CPU; kernels.py compiles this for the machine it runs on.
//
// Matrices are packed once, in panels of PANEL outputs, which a product reads sequentially. A tile of ROWS rows and PANEL
// outputs stays in registers while it runs along its panel. Rows are independent of one another.

#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <exception>
#include <new>
#include <type_traits>
#include <vector>
#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#if defined(__AVX512BW__)
constexpr int LANES = 16, ROWS = 10;
#elif defined(__aarch64__)
constexpr int LANES = 4, ROWS = 8;
#else
constexpr int LANES = 8, ROWS = 6;
#endif
constexpr int PANEL = 2 * LANES;  // outputs of a panel

typedef float Floats __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t Ints __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

extern "C" {

// A linear map x W^T + bias. If `scale` is null, the panels hold floats. Otherwise they hold 8-bit integers, and `scale` and
// `sums` hold the scale and the sum of the integer weights of each output.
struct Linear {
    const void* panels;
    const float* bias;
    const float* scale;
    const int32_t* sums;
    int64_t inputs, outputs;
};

// LayerNorm, or RMSNorm if `rms` is set; no norm if weight is null.
struct Norm {
    const float *weight, *bias;
    float eps;
    int32_t rms;
};

// The norms of queries and keys are over one head.
struct Layer {
    Linear qkv, output, cross_q, cross_kv, cross_output, wide, narrow;
    Norm norm, cross_norm, feed_forward_norm, query_norm, key_norm, cross_query_norm, cross_key_norm;
};

// `window`: number of keys that a query sees, including its own position; in an encoder, on each side. 0: all.
struct Stack {
    int64_t n_layers, d_model, n_heads, n_kv_heads, d_head, window;
    int32_t pre, activation, gated, cross;
    const Layer* layers;
    Norm embedding_norm, norm;
};

// An embedding table of `rows` rows, whose vectors are multiplied by `scale`.
struct Embedding {
    const float* weight;
    int64_t rows;
    float scale;
};

// Encodings (T, D) to be added to vectors; cosines and sines (T, E / 2) that rotate queries and keys. Null: none.
struct Positions {
    const float *added, *cosines, *sines;
};

// Keys and values of earlier positions (n_layers, n_slots, capacity, 2, K, E), of which the first `length` are filled, and of the
// memory (n_layers, n_memory_slots, memory_length, 2, K, E). Position t of row m is in slot slots[m, t], of a table (n_rows,
// capacity): rows with common earlier positions share their slots. The rows of a sentence are consecutive. Sentence b attends to
// memory_lengths[b] positions of slot memory_slots[b], or to all positions if memory_lengths is null.
struct KVCache {
    float* past;
    int64_t* slots;
    const float* memory;
    int64_t *memory_slots, *memory_lengths;
    int64_t n_rows, n_slots, length, capacity, n_sentences, n_memory_slots, memory_length;
};

// n hypotheses of every sentence, best first: tokens (B, n, L), log_prob and score (B, n), which are -inf for missing ones.
struct Hypotheses {
    int64_t* tokens;
    float *log_prob, *score;
};

// A greedy search. Row m of the cache belongs to row rows[m] of `tokens` (N, longest), which has `length` tokens so far. Row i ends
// with `eos`, or at bounds[i] tokens. Tokens in `suppressed` are never chosen; log_prob is null if it is not needed.
struct GreedySearch {
    const Linear* output;
    const int64_t* suppressed;
    int64_t n_suppressed, eos, longest, length;
    const int64_t* bounds;
    int64_t *tokens, *rows;
    float* log_prob;
};

// A beam search. The cache has `beam` rows per sentence; its sentence a is number sentences[a] of the tables. They hold hypotheses
// (B, beam, longest) of `length` tokens each; finished ones are padded with `eos`. Sentence b is done when its best active
// hypothesis has no higher score than the worst of `beam` finished ones, or at bounds[b] tokens; lengths[b] is its length then.
// penalties[n] divides the log-probability of n tokens; parents (n_sentences, beam) is scratch.
struct BeamSearch {
    const Linear* output;
    const int64_t* suppressed;
    int64_t n_suppressed, eos, longest, length, beam, n_sentences;
    const int64_t* bounds;
    const float* penalties;
    int64_t *sentences, *lengths, *parents;
    Hypotheses active, finished;
};
}

namespace {

inline Floats load(const float* x) { return *reinterpret_cast<const Floats*>(x); }
inline void store(float* x, Floats y) { *reinterpret_cast<Floats*>(x) = y; }

// The first half of a vector; the other lanes are 0.
inline Floats load_half(const float* x) {
#if defined(__AVX512BW__)
    return (Floats)_mm512_zextps256_ps512(_mm256_loadu_ps(x));
#elif defined(__AVX2__)
    return (Floats)_mm256_zextps128_ps256(_mm_loadu_ps(x));
#else
    Floats y = {};
    std::memcpy(&y, x, sizeof y / 2);
    return y;
#endif
}
inline void store_half(float* x, Floats y) { std::memcpy(x, &y, sizeof y / 2); }

inline Floats larger(Floats x, Floats y) { return x > y ? x : y; }  // y where x is NaN

// exp by 2^n times a polynomial on [-ln 2 / 2, ln 2 / 2] (Cephes), within 1 ulp from -87 to 88, to which x is bounded.
inline Floats bounded_exponential(Floats x) {
    const Floats least = Floats{} - 87.0f, most = Floats{} + 88.0f;
    x = larger(least, x);
    x = x > most ? most : x;
    Floats turns = x * 1.44269504f + 12582912.0f;  // adding 1.5 * 2^23 rounds
    Ints exponent = reinterpret_cast<Ints>(turns) << 23;  // n; the shift removes the bits of 1.5 * 2^23
    turns -= 12582912.0f;
    x = x - turns * 0.693359375f + turns * 2.12194440e-4f;
    Floats y = ((((1.9875691500e-4f * x + 1.3981999507e-3f) * x + 8.3334519073e-3f) * x + 4.1665795894e-2f) * x
                + 1.6666665459e-1f) * x + 5.0000001201e-1f;
    y = y * x * x + x + 1.0f;
    return reinterpret_cast<Floats>(reinterpret_cast<Ints>(y) + exponent);
}

// exp, but 0 below -87: products with smaller numbers would be denormal, which is slow.
inline Floats exponential(Floats x) { return x < -87.0f ? Floats{} : bounded_exponential(x); }

// Reduce the N lanes of x to one number, by joining halves repeatedly.
template <int N, class Vector, class Join>
inline float joined(Vector x, Join join) {
    if constexpr (N == 1) {
        return x[0];
    } else {
        typedef float Half __attribute__((vector_size(2 * N)));
        Half halves[2];
        std::memcpy(halves, &x, sizeof x);
        return joined<N / 2>(join(halves[0], halves[1]), join);
    }
}

inline float total(Floats x) {
    return joined<LANES>(x, [](auto y, auto z) { return y + z; });
}

inline float largest_of(Floats x) {
    return joined<LANES>(x, [](auto y, auto z) { return y > z ? y : z; });
}

// Sums of neighbouring lanes: first those of x, then those of y.
inline Floats sums_of_pairs(Floats x, Floats y) {
#if defined(__clang__)
#if defined(__AVX512BW__)
    return __builtin_shufflevector(x, y, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30)
           + __builtin_shufflevector(x, y, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
#else
    return __builtin_shufflevector(x, y, 0, 2, 4, 6, 8, 10, 12, 14) + __builtin_shufflevector(x, y, 1, 3, 5, 7, 9, 11, 13, 15);
#endif
#else
    Ints even, odd;
    for (int i = 0; i < LANES; i++) even[i] = 2 * i, odd[i] = 2 * i + 1;
    return __builtin_shuffle(x, y, even) + __builtin_shuffle(x, y, odd);
#endif
}

// The sum of each of LANES vectors, one per lane of the result.
template <int N = LANES>
inline Floats totals(const Floats* x) {
    if constexpr (N == 1)
        return x[0];
    else
        return sums_of_pairs(totals<N / 2>(x), totals<N / 2>(x + N / 2));
}

// The sum of `each` over n numbers: vector by vector, and the rest one by one.
template <class Each>
inline float sum_of(int64_t n, Each each) {
    auto many = [](const float* x, int64_t i) { return load(x + i); };
    auto one = [](const float* x, int64_t i) { return x[i]; };
    Floats sum = {}, other = {};
    int64_t i = 0;
    for (; i + PANEL <= n; i += PANEL) sum += each(i, many), other += each(i + LANES, many);
    for (; i + LANES <= n; i += LANES) sum += each(i, many);
    float result = total(sum + other);
    for (; i < n; i++) result += each(i, one);
    return result;
}

// Write the first n outputs of a tile for one row.
__attribute__((noinline)) void write_some(const float* row, float* y, const float* bias, int64_t n, bool relu) {
    for (int64_t i = 0; i < n; i++) {
        float value = row[i] + (bias ? bias[i] : 0.0f);
        y[i] = relu ? std::max(value, 0.0f) : value;
    }
}

// Write a tile's sums for one row: add the bias, apply relu, and write only the n outputs that exist.
inline void write(const Floats* sums, float* y, const float* bias, int64_t n, bool relu) {
    alignas(64) float row[PANEL];
    for (int half = 0; half < 2; half++) {
        Floats sum = sums[half];
        if (bias && n == PANEL) sum += load(bias + half * LANES);
        if (relu && (n == PANEL || !bias)) sum = sum < 0.0f ? Floats{} : sum;  // NaN stays
        store(n == PANEL ? y + half * LANES : row + half * LANES, sum);
    }
    if (n < PANEL) write_some(row, y, bias, n, relu);
}

// `ahead`: offset of the memory to prefetch while this panel is read.
template <int R>
void tile(const float* x, const float* panel, int64_t ahead, int64_t inputs, float* y, int64_t stride, const float* bias,
          int64_t n, bool relu) {
    Floats sums[R][2];
    for (int r = 0; r < R; r++) sums[r][0] = sums[r][1] = Floats{};
    for (int64_t k = 0; k < inputs; k++, panel += PANEL) {
        Floats left = load(panel), right = load(panel + LANES);
        for (int i = 0; i < PANEL; i += 16) __builtin_prefetch(panel + ahead + i);
        for (int r = 0; r < R; r++) {
            float value = x[r * inputs + k];
            sums[r][0] += left * value;
            sums[r][1] += right * value;
        }
    }
    for (int r = 0; r < R; r++) write(sums[r], y + r * stride, bias, n, relu);
}

// 8-bit products: inputs (LEAST or more) times weights; each lane multiplies PAIR of them and adds the products in 32 bits. For
// unsigned inputs without VNNI, two products are first added in 16 bits, so neighbouring weights a and b must satisfy
// |a + b| <= 128, as 255 * 128 < 2^15.
constexpr int PAIR = 4;
#if defined(__AVX2__)
typedef uint8_t Rounded;
constexpr int LEAST = 0;
#else
typedef int8_t Rounded;
constexpr int LEAST = -128;
#endif
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__) || !defined(__AVX2__)
constexpr bool SATURATES = false;
#else
constexpr bool SATURATES = true;
#endif
inline Ints multiply(Ints sum, Ints weights, int32_t inputs) {
#if defined(__AVX512VNNI__)
    return (Ints)_mm512_dpbusd_epi32((__m512i)sum, _mm512_set1_epi32(inputs), (__m512i)weights);
#elif defined(__AVX512BW__)
    __m512i two = _mm512_maddubs_epi16(_mm512_set1_epi32(inputs), (__m512i)weights);
    return sum + (Ints)_mm512_madd_epi16(two, _mm512_set1_epi16(1));
#elif defined(__AVXVNNI__)
    return (Ints)_mm256_dpbusd_avx_epi32((__m256i)sum, _mm256_set1_epi32(inputs), (__m256i)weights);
#elif defined(__AVX2__)
    __m256i two = _mm256_maddubs_epi16(_mm256_set1_epi32(inputs), (__m256i)weights);
    return sum + (Ints)_mm256_madd_epi16(two, _mm256_set1_epi16(1));
#elif defined(__ARM_FEATURE_DOTPROD)
    return (Ints)vdotq_s32((int32x4_t)sum, (int8x16_t)weights, vreinterpretq_s8_s32(vdupq_n_s32(inputs)));
#elif defined(__aarch64__)
    int8x16_t x = vreinterpretq_s8_s32(vdupq_n_s32(inputs)), w = (int8x16_t)weights;
    int16x8_t two = vpaddq_s16(vmull_s8(vget_low_s8(x), vget_low_s8(w)), vmull_high_s8(x, w));
    return (Ints)vpadalq_s16((int32x4_t)sum, two);
#else
    int8_t four[PAIR], wide[LANES * PAIR];
    std::memcpy(four, &inputs, sizeof four);
    std::memcpy(wide, &weights, sizeof wide);
    for (int i = 0; i < LANES * PAIR; i++) sum[i / PAIR] += wide[i] * four[i % PAIR];
    return sum;
#endif
}

int64_t padded(int64_t inputs) { return (inputs + PAIR - 1) / PAIR * PAIR; }

// How a row is quantized: a number is (its integer - zero) * scale.
struct RowScale {
    float scale;
    int32_t zero;
};

template <int R>
void tile(const Rounded* x, const RowScale* rows, const int8_t* panel, int64_t inputs, float* y, int64_t stride,
          const float* scale, const int32_t* weight_sums, const float* bias, int64_t n, bool relu) {
    Ints sums[R][2];
    for (int half = 0; half < 2; half++)
        for (int r = 0; r < R; r++)
            sums[r][half] = -rows[r].zero * *reinterpret_cast<const Ints*>(weight_sums + half * LANES);
    for (int64_t k = 0; k < inputs; k += PAIR, panel += PANEL * PAIR) {
        Ints left = *reinterpret_cast<const Ints*>(panel), right = *reinterpret_cast<const Ints*>(panel + LANES * PAIR);
        for (int r = 0; r < R; r++) {
            int32_t chunk;
            std::memcpy(&chunk, x + r * inputs + k, 4);
            sums[r][0] = multiply(sums[r][0], left, chunk);
            sums[r][1] = multiply(sums[r][1], right, chunk);
        }
    }
    for (int r = 0; r < R; r++) {
        Floats scaled[2];
        for (int half = 0; half < 2; half++)
            scaled[half] = __builtin_convertvector(sums[r][half], Floats) * load(scale + half * LANES) * rows[r].scale;
        write(scaled, y + r * stride, bias, n, relu);
    }
}

// Quantize a row in the range of its numbers, extended to include 0. The scale is NaN if one of the numbers is.
RowScale quantize(const float* x, int64_t inputs, Rounded* rounded) {
    Floats high = {}, low = {}, sum = {};
    int64_t i = 0;
    for (; i + LANES <= inputs; i += LANES) {
        Floats value = load(x + i);
        high = larger(value, high), low = larger(-value, low);
        sum += value;
    }
    float largest = largest_of(high), least = -largest_of(low), all = total(sum);
    for (; i < inputs; i++) largest = std::max(largest, x[i]), least = std::min(least, x[i]), all += x[i];
    float scale = std::max(largest / 254 - least / 254, 1.17549435e-38f / 254), factor = 1.0f / scale;  // 255 if both ends round up
    if (std::isnan(all) || factor == 0) {
        std::fill(rounded, rounded + padded(inputs), static_cast<Rounded>(LEAST));
        return {NAN, LEAST};
    }
    if (!std::isfinite(factor)) factor = 0;
    const int32_t zero = LEAST + static_cast<int32_t>(std::nearbyint(-least * factor));
    for (i = 0; i < inputs; i++) {
        float turned = x[i] * factor + 12582912.0f;  // rounds to even
        int32_t bits;
        std::memcpy(&bits, &turned, 4);
        rounded[i] = static_cast<Rounded>(bits - 0x4B400000 + zero);
    }
    for (; i < padded(inputs); i++) rounded[i] = static_cast<Rounded>(zero);
    return {scale, zero};
}

// Call body(value) for a value of FIRST to MOST, as a compile-time constant.
template <int MOST, int FIRST = 1, class Body>
void with_constant(int64_t value, Body body) {
    if constexpr (FIRST < MOST)
        if (value > FIRST) return with_constant<MOST, FIRST + 1>(value, body);
    body(std::integral_constant<int, FIRST>{});
}

// The outputs of some panels for n rows, in tiles of up to ROWS rows. Tiles have about equal size, as a tile of a single row waits
// for its sums.
void some_panels(const Linear& map, const float* x, const Rounded* rounded, const RowScale* row_scale, int64_t n, float* y,
                 bool relu, int64_t first, int64_t last) {
    const int64_t inputs = rounded ? padded(map.inputs) : map.inputs;
    for (int64_t p = first; p < last; p++) {
        const int64_t at = p * PANEL, width = std::min<int64_t>(PANEL, map.outputs - at);
        const float* bias = map.bias ? map.bias + at : nullptr;
        auto go = [&](auto rows, int64_t m) {
            constexpr int R = decltype(rows)::value;
            float* out = y + m * map.outputs + at;
            if (rounded)
                tile<R>(rounded + m * inputs, row_scale + m, static_cast<const int8_t*>(map.panels) + at * inputs, inputs,
                        out, map.outputs, map.scale + at, map.sums + at, bias, width, relu);
            else
                tile<R>(x + m * inputs, static_cast<const float*>(map.panels) + at * inputs, m == 0 ? PANEL * inputs : 0, inputs,
                        out, map.outputs, bias, width, relu);
        };
        for (int64_t m = 0, rows; m < n; m += rows) {
            const int64_t tiles = (n - m + ROWS - 1) / ROWS;
            rows = (n - m + tiles - 1) / tiles;
            with_constant<ROWS>(rows, [&](auto constant) { go(constant, m); });
        }
    }
}

// Scratch memory of a thread. It grows, and is kept between calls unless it is larger than KEPT bytes.
struct Scratch {
    std::vector<float> states, x, y, outputs, scores, keys, values;
    std::vector<RowScale> row_scales;
    std::vector<const float*> positions;
    std::vector<Rounded> rounded;
};
thread_local Scratch scratch;
constexpr size_t KEPT = 1 << 24;

void release_large_scratch() {
    size_t bytes = scratch.rounded.capacity() * sizeof(Rounded);
    for (const auto* each : {&scratch.states, &scratch.x, &scratch.y, &scratch.outputs, &scratch.scores,
                             &scratch.keys, &scratch.values})
        bytes += each->capacity() * sizeof(float);
    if (bytes > KEPT) scratch = Scratch();
}

// Call body(t) for t = 0 ... threads - 1, each in its own thread. An exception must not leave an OpenMP thread, so it is
// rethrown here after all threads have ended.
template <class Body>
void parallel(int threads, Body body) {
    if (threads == 1) return body(0);
    std::exception_ptr thrown;
#pragma omp parallel for schedule(static, 1) num_threads(threads)
    for (int t = 0; t < threads; t++) {
        try {
            body(t);
        } catch (...) {
            if (omp_get_thread_num()) scratch = Scratch();  // the first thread's may still be read by others
#pragma omp critical
            thrown = std::current_exception();
        }
    }
    if (thrown) std::rethrow_exception(thrown);
}

// The result of `body`, or OUT_OF_MEMORY if it cannot allocate its scratch.
constexpr int32_t OUT_OF_MEMORY = -1;

template <class Body>
int32_t guarded(Body body) {
    try {
        return body();
    } catch (const std::bad_alloc&) {
        scratch = Scratch();
        return OUT_OF_MEMORY;
    }
}

void linear(const Linear& map, const float* x, int64_t n, float* y, bool relu, int threads) {
    const int64_t n_panels = (map.outputs + PANEL - 1) / PANEL;
    const Rounded* rounded = nullptr;
    const RowScale* row_scale = nullptr;
    if (map.scale) {
        const int64_t inputs = padded(map.inputs);
        scratch.rounded.resize(n * inputs);
        scratch.row_scales.resize(n);
        for (int64_t m = 0; m < n; m++) scratch.row_scales[m] = quantize(x + m * map.inputs, map.inputs, &scratch.rounded[m * inputs]);
        rounded = scratch.rounded.data(), row_scale = scratch.row_scales.data();
    }
    // with few rows, reading the matrix takes the time; a small product is done before another thread wakes up
    if (std::max<int64_t>(n, 6) * map.inputs * map.outputs < (1 << 23)) threads = 1;
    parallel(threads, [&](int t) {
        some_panels(map, x, rounded, row_scale, n, y, relu, n_panels * t / threads, n_panels * (t + 1) / threads);
    });
}

void normalize(const Norm& norm, const float* x, int64_t n, int64_t width, float* y) {
    for (int64_t m = 0; m < n; m++, x += width, y += width) {
        const float mean = norm.rms ? 0.0f : sum_of(width, [&](int64_t i, auto at) { return at(x, i); }) / width;
        const float square = sum_of(width, [&](int64_t i, auto at) { return (at(x, i) - mean) * (at(x, i) - mean); });
        const float factor = 1.0f / std::sqrt(square / width + norm.eps);
        if (norm.bias)
            for (int64_t i = 0; i < width; i++) y[i] = (x[i] - mean) * factor * norm.weight[i] + norm.bias[i];
        else
            for (int64_t i = 0; i < width; i++) y[i] = (x[i] - mean) * factor * norm.weight[i];
    }
}

// 1 gelu, 2 gelu_tanh, 3 silu, 4 relu (which products also apply themselves)
inline Floats activated(Floats x, int32_t kind) {
    if (kind == 4) return x < 0.0f ? Floats{} : x;
    if (kind == 1) {  // x times the normal distribution's integral (Abramowitz and Stegun 7.1.26, within 1e-7)
        Floats z = (x < 0.0f ? -x : x) * 0.70710678f, t = 1.0f / (1.0f + 0.3275911f * z);
        Floats tail = ((((1.061405429f * t - 1.453152027f) * t + 1.421413741f) * t - 0.284496736f) * t + 0.254829592f) * t;
        tail *= 0.5f * exponential(-z * z);
        return x * (x < 0.0f ? tail : 1.0f - tail);
    }
    Floats z = kind == 3 ? x : 1.5957691216f * (x + 0.044715f * x * x * x);  // tanh is a sigmoid of twice its argument
    return x / (1.0f + exponential(-z));
}

void activate(float* x, int64_t n, int32_t kind) {
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) store(x + i, activated(load(x + i), kind));
    if (i == n) return;
    float rest[LANES] = {};
    std::memcpy(rest, x + i, (n - i) * sizeof(float));
    store(rest, activated(load(rest), kind));
    std::memcpy(x + i, rest, (n - i) * sizeof(float));
}

// Rotate the pairs (i, i + width / 2) of some heads of one position by the angles of these cosines and sines.
void rotate(float* x, int64_t heads, int64_t width, const float* cosines, const float* sines) {
    const int64_t half = width / 2;
    for (int64_t h = 0; h < heads; h++, x += width) {
#pragma omp simd
        for (int64_t i = 0; i < half; i++) {
            const float first = x[i], second = x[half + i];
            x[i] = first * cosines[i] - second * sines[i];
            x[half + i] = second * cosines[i] + first * sines[i];
        }
    }
}

// Scores of a query for n keys at positions[i] + key, padded with -inf to a whole vector. VECTORS: the vectors of a key, if known
// at compile time; 0: `width` says.
template <int VECTORS>
void scores_of(const float* query, const float* const* positions, int64_t key, int64_t n, int64_t width, float scale, float* scores) {
    const int64_t whole = VECTORS ? VECTORS * LANES : width / LANES * LANES;
    Ints lane;
    for (int i = 0; i < LANES; i++) lane[i] = i;
    for (int64_t i = 0; i < n; i += LANES) {
        Floats products[LANES];
        for (int64_t j = 0; j < LANES; j++) {
            const float* x = positions[std::min(i + j, n - 1)] + key;
            Floats product = {};
            int64_t at = 0;
            for (; at < whole; at += LANES) product += load(query + at) * load(x + at);
            if (!VECTORS && at + LANES / 2 <= width) product += load_half(query + at) * load_half(x + at), at += LANES / 2;
            for (; !VECTORS && at < width; at++) product[0] += query[at] * x[at];
            products[j] = product;
        }
        Floats score = totals(products) * scale;
        store(scores + i, lane < static_cast<int32_t>(std::min<int64_t>(n - i, LANES)) ? score : Floats{} - INFINITY);
    }
}

// Softmax in place: scores become weights.
void softmax(float* scores, int64_t n) {
    Floats high = Floats{} - INFINITY, sums = {};
    for (int64_t i = 0; i < n; i += LANES) high = larger(load(scores + i), high);
    const float largest = largest_of(high);
    for (int64_t i = 0; i < n; i += LANES) {
        Floats weight = exponential(load(scores + i) - largest);
        store(scores + i, weight);
        sums += weight;
    }
    const float factor = 1.0f / total(sums);
    for (int64_t i = 0; i < n; i += LANES) store(scores + i, load(scores + i) * factor);
}

// The weighted sum of n values at positions[i] + value: VECTORS * LANES numbers, or half as many if HALF.
template <int VECTORS, bool HALF = false>
void weighted_sum(const float* const* positions, int64_t value, const float* weights, int64_t n, float* out) {
    constexpr int CHAINS = VECTORS == 4 ? 2 : 4;  // independent sums, which do not wait for one another
    Floats sums[CHAINS][VECTORS];
    for (auto& chain : sums) std::fill(chain, chain + VECTORS, Floats{});
    auto add = [&](int c, int64_t i) {
        for (int v = 0; v < VECTORS; v++) {
            const float* x = positions[i] + value + v * LANES;
            sums[c][v] += (HALF ? load_half(x) : load(x)) * weights[i];
        }
    };
    int64_t i = 0;
    for (; i + CHAINS <= n; i += CHAINS)
        for (int c = 0; c < CHAINS; c++) add(c, i + c);
    for (; i < n; i++) add(0, i);
    for (int v = 0; v < VECTORS; v++) {
        for (int c = 1; c < CHAINS; c++) sums[0][v] += sums[c][v];
        HALF ? store_half(out, sums[0][v]) : store(out + v * LANES, sums[0][v]);
    }
}

// Source length from which encoder attention is computed by matrix products.
constexpr int64_t LONG = 64;

// n heads of queries; each group of `shared` neighbours reads one head of keys and values. `keys` and `values` are the offsets of
// the keys and values of all heads from the address of a position.
struct Heads {
    int64_t n, shared, width, keys, values;
};

// Attention of the queries of one position to n positions: softmax(q k scale) v of every head, or zeros if n is 0. Each stage runs
// over all heads, as computations of different heads do not wait for one another.
void attend(const Heads& heads, const float* queries, const float* const* positions, int64_t n, float* out) {
    const int64_t width = heads.width, size = (n + LANES - 1) / LANES * LANES;
    if (n < 1) return std::fill(out, out + heads.n * width, 0.0f);
    if (static_cast<int64_t>(scratch.scores.size()) < heads.n * size) scratch.scores.resize(2 * heads.n * size);
    float* const all_scores = scratch.scores.data();
    const float scale = 1.0f / std::sqrt(static_cast<float>(width));
    for (int64_t h = 0; h < heads.n; h++) {
        const float* query = queries + h * width;
        const int64_t key = heads.keys + h / heads.shared * width;
        float* scores = all_scores + h * size;
        if (width == LANES) scores_of<1>(query, positions, key, n, width, scale, scores);
        else if (width == 2 * LANES) scores_of<2>(query, positions, key, n, width, scale, scores);
        else if (width == 4 * LANES) scores_of<4>(query, positions, key, n, width, scale, scores);
        else scores_of<0>(query, positions, key, n, width, scale, scores);
    }
    for (int64_t h = 0; h < heads.n; h++) softmax(all_scores + h * size, n);
    for (int64_t h = 0; h < heads.n; h++, out += width) {
        const float* weights = all_scores + h * size;
        const int64_t value = heads.values + h / heads.shared * width;
        int64_t at = 0;
        for (; at + 4 * LANES <= width; at += 4 * LANES) weighted_sum<4>(positions, value + at, weights, n, out + at);
        if (at + 2 * LANES <= width) weighted_sum<2>(positions, value + at, weights, n, out + at), at += 2 * LANES;
        if (at + LANES <= width) weighted_sum<1>(positions, value + at, weights, n, out + at), at += LANES;
        if (at + LANES / 2 <= width) weighted_sum<1, true>(positions, value + at, weights, n, out + at), at += LANES / 2;
        if (at == width) continue;
        std::fill(out + at, out + width, 0.0f);
        for (int64_t i = 0; i < n; i++)
            for (int64_t j = at; j < width; j++) out[j] += positions[i][value + j] * weights[i];
    }
}

// One head of attention between n positions, whose queries, keys and values are `stride` numbers apart, as two matrix products:
// queries times keys, and weights times values. It is for long sources, where many queries share the keys and values read.
void attend_by_products(const float* queries, const float* keys, const float* values, int64_t n, int64_t stride, int64_t width,
                        float* out, int64_t out_stride, int threads) {
    constexpr int64_t BLOCK = 2 * ROWS;
    const int64_t size = (n + PANEL - 1) / PANEL * PANEL, padded_width = (width + PANEL - 1) / PANEL * PANEL;
    scratch.keys.assign(size * width, 0.0f);
    scratch.values.assign(size * padded_width, 0.0f);
    float *key_panels = scratch.keys.data(), *value_panels = scratch.values.data();
    for (int64_t t = 0; t < n; t++)
        for (int64_t i = 0; i < width; i++) {
            key_panels[t / PANEL * PANEL * width + i * PANEL + t % PANEL] = keys[t * stride + i];
            value_panels[i / PANEL * PANEL * size + t * PANEL + i % PANEL] = values[t * stride + i];
        }
    const Linear to_scores{key_panels, nullptr, nullptr, nullptr, width, size}, to_values{value_panels, nullptr, nullptr, nullptr, size, width};
    const float scale = 1.0f / std::sqrt(static_cast<float>(width));
    parallel(threads, [&](int thread) {
        scratch.scores.resize(BLOCK * (size + 2 * width));
        float *scores = scratch.scores.data(), *block = scores + BLOCK * size, *sums = block + BLOCK * width;
        for (int64_t first = thread * BLOCK; first < n; first += threads * BLOCK) {
            const int64_t rows = std::min(BLOCK, n - first);
            for (int64_t m = 0; m < rows; m++)
                for (int64_t i = 0; i < width; i++) block[m * width + i] = queries[(first + m) * stride + i] * scale;
            some_panels(to_scores, block, nullptr, nullptr, rows, scores, false, 0, size / PANEL);
            for (int64_t m = 0; m < rows; m++) {
                std::fill(scores + m * size + n, scores + (m + 1) * size, -INFINITY);
                softmax(scores + m * size, size);
            }
            some_panels(to_values, scores, nullptr, nullptr, rows, sums, false, 0, padded_width / PANEL);
            for (int64_t m = 0; m < rows; m++) std::copy_n(sums + m * width, width, out + (first + m) * out_stride);
        }
    });
}

// Run the layers of a stack on n vectors, in place. attention(layer, qkv, to) and memory(layer, queries, to) compute self- and
// cross-attention.
template <class Attention, class Memory>
void layers(const Stack& stack, float* x, int64_t n, int threads, Attention attention, Memory memory) {
    const int64_t width = stack.d_model, inner = stack.n_heads * stack.d_head;
    int64_t widest = inner + 2 * stack.n_kv_heads * stack.d_head;
    for (int64_t i = 0; i < stack.n_layers; i++) widest = std::max(widest, stack.layers[i].wide.outputs);
    scratch.x.resize(n * std::max(width, inner));
    scratch.y.resize(n * std::max(width, inner));
    scratch.outputs.resize(n * widest);
    float *a = scratch.x.data(), *b = scratch.y.data(), *outputs = scratch.outputs.data();

    // pre-norm is x += f(norm(x)), post-norm x = norm(x + f(x)); f reads its argument and writes to `a`
    auto around = [&](const Norm& norm, auto function) {
        if (stack.pre) normalize(norm, x, n, width, a);
        function(stack.pre ? a : x);
        for (int64_t i = 0; i < n * width; i++) x[i] += a[i];
        if (!stack.pre) normalize(norm, x, n, width, x);
    };
    if (stack.embedding_norm.weight) normalize(stack.embedding_norm, x, n, width, x);
    for (int64_t i = 0; i < stack.n_layers; i++) {
        const Layer& layer = stack.layers[i];
        around(layer.norm, [&](const float* read) {
            linear(layer.qkv, read, n, outputs, false, threads);
            attention(i, outputs, b);
            linear(layer.output, b, n, a, false, threads);
        });
        if (stack.cross)
            around(layer.cross_norm, [&](const float* read) {
                linear(layer.cross_q, read, n, outputs, false, threads);
                if (layer.cross_query_norm.weight)
                    normalize(layer.cross_query_norm, outputs, n * stack.n_heads, stack.d_head, outputs);
                memory(i, outputs, b);
                linear(layer.cross_output, b, n, a, false, threads);
            });
        around(layer.feed_forward_norm, [&](const float* read) {
            const int64_t hidden = layer.narrow.inputs;
            linear(layer.wide, read, n, outputs, stack.activation == 4 && !stack.gated, threads);
            if (!stack.gated) activate(outputs, n * hidden, stack.activation);
            for (int64_t m = 0; stack.gated && m < n; m++) {  // the gate comes before the value
                float *gate = outputs + 2 * m * hidden, *value = gate + hidden, *to = outputs + m * hidden;
                activate(gate, hidden, stack.activation);
                for (int64_t j = 0; j < hidden; j++) to[j] = gate[j] * value[j];
            }
            linear(layer.narrow, outputs, n, a, false, threads);
        });
    }
    if (stack.norm.weight) normalize(stack.norm, x, n, width, x);
}

// Normalize and rotate the queries and keys of position t. In qkv they come before the values.
void prepare(const Stack& stack, const Layer& layer, float* qkv, const Positions& positions, int64_t t) {
    const int64_t e = stack.d_head, inner = stack.n_heads * e;
    if (layer.query_norm.weight) {
        normalize(layer.query_norm, qkv, stack.n_heads, e, qkv);
        normalize(layer.key_norm, qkv + inner, stack.n_kv_heads, e, qkv + inner);
    }
    const int64_t at = t * (e / 2);
    if (positions.cosines) rotate(qkv, stack.n_heads + stack.n_kv_heads, e, positions.cosines + at, positions.sines + at);
}

// Compute T new positions of the rows first ... last - 1: x (rows, T, D) holds their vectors, which are replaced by their states.
void some_rows(const Stack& stack, const KVCache& cache, const Positions& positions, float* x, int64_t n_new,
               int64_t first, int64_t last, int threads) {
    const int64_t n = (last - first) * n_new, heads = stack.n_heads, kv_heads = stack.n_kv_heads, e = stack.d_head;
    const int64_t inner = heads * e, both = 2 * kv_heads * e, stride = inner + both;
    const Heads each_head{heads, heads / kv_heads, e, 0, both / 2};
    const int64_t per_sentence = cache.n_sentences ? cache.n_rows / cache.n_sentences : 1, length = cache.memory_length;
    const int sharing = n_new * (cache.length + n_new) < (1 << 12) ? 1 : threads;  // threads that share one row
    auto attention = [&](int64_t i, float* qkv, float* to) {
        float* past = cache.past + i * cache.n_slots * cache.capacity * both;
        for (int64_t row = first; row < last; row++, qkv += n_new * stride, to += n_new * inner) {
            int64_t* slots = cache.slots + row * cache.capacity;
            std::fill(slots + cache.length, slots + cache.length + n_new, row);
            scratch.positions.resize(cache.length + n_new);
            const float** there = scratch.positions.data();
            for (int64_t t = 0; t < cache.length + n_new; t++) there[t] = past + (slots[t] * cache.capacity + t) * both;
            if (row + 1 < last) {  // prefetch the positions that the next row does not share with this one
                const int64_t* next = slots + cache.capacity;
                for (int64_t t = 0; t < cache.length; t++) {
                    if (next[t] == slots[t]) continue;
                    const float* position = past + (next[t] * cache.capacity + t) * both;
                    for (int64_t j = 0; j < both; j += 16) __builtin_prefetch(position + j);
                }
            }
            for (int64_t m = 0; m < n_new; m++) {
                prepare(stack, stack.layers[i], qkv + m * stride, positions, m);
                const int64_t at = row * cache.capacity + cache.length + m;
                std::memcpy(past + at * both, qkv + m * stride + inner, both * sizeof(float));
            }
            parallel(sharing, [&](int thread) {
                for (int64_t m = thread; m < n_new; m += sharing) {
                    const int64_t end = cache.length + m + 1, start = stack.window ? std::max<int64_t>(0, end - stack.window) : 0;
                    attend(each_head, qkv + m * stride, there + start, end - start, to + m * inner);
                }
            });
        }
    };
    auto memory = [&](int64_t i, const float* queries, float* to) {
        scratch.positions.resize(length);
        const float** there = scratch.positions.data();
        for (int64_t row = first, end; row < last; row = end) {
            const int64_t sentence = row / per_sentence;
            end = std::min(last, (sentence + 1) * per_sentence);
            const float* keys = cache.memory + (i * cache.n_memory_slots + cache.memory_slots[sentence]) * length * both;
            for (int64_t t = 0; t < length; t++) there[t] = keys + t * both;
            const int64_t n_keys = cache.memory_lengths ? std::min(cache.memory_lengths[sentence], length) : length;
            for (int64_t m = (row - first) * n_new; m < (end - first) * n_new; m++)
                attend(each_head, queries + m * inner, there, n_keys, to + m * inner);
        }
    };
    layers(stack, x + first * n_new * stack.d_model, n, threads, attention, memory);
}

// Replace the vectors of the sentences first ... last - 1 of x (B, S, D) by their states. Padding is not computed and becomes 0.
void some_sentences(const Stack& stack, float* x, int64_t length, const int64_t* lengths, const Positions& positions,
                    int64_t first, int64_t last, int threads) {
    const int64_t heads = stack.n_heads, kv_heads = stack.n_kv_heads, e = stack.d_head, inner = heads * e;
    const int64_t width = stack.d_model, stride = inner + 2 * kv_heads * e;
    const Heads each_head{heads, heads / kv_heads, e, inner, inner + kv_heads * e};
    auto length_of = [&](int64_t b) { return lengths ? lengths[b] : length; };
    scratch.states.clear();
    for (int64_t b = first; b < last; b++)
        scratch.states.insert(scratch.states.end(), x + b * length * width, x + (b * length + length_of(b)) * width);
    auto attention = [&](int64_t i, float* qkv, float* to) {
        for (int64_t b = first; b < last; b++) {
            const int64_t n = length_of(b);
            scratch.positions.resize(n);
            const float** there = scratch.positions.data();
            for (int64_t m = 0; m < n; m++) {
                there[m] = qkv + m * stride;
                prepare(stack, stack.layers[i], qkv + m * stride, positions, m);
            }
            const int sharing = n * n < (1 << 12) ? 1 : threads;
            for (int64_t h = 0; n >= LONG && !stack.window && h < heads; h++) {
                const float* shared = qkv + inner + h / each_head.shared * e;
                attend_by_products(qkv + h * e, shared, shared + kv_heads * e, n, stride, e, to + h * e, inner, sharing);
            }
            if (n < LONG || stack.window) parallel(sharing, [&](int thread) {
                for (int64_t m = thread; m < n; m += sharing) {
                    const int64_t start = stack.window ? std::max<int64_t>(0, m + 1 - stack.window) : 0;
                    const int64_t end = stack.window ? std::min(n, m + stack.window) : n;
                    attend(each_head, there[m], there + start, end - start, to + m * inner);
                }
            });
            qkv += n * stride, to += n * inner;
        }
    };
    const int64_t n_rows = static_cast<int64_t>(scratch.states.size()) / width;
    layers(stack, scratch.states.data(), n_rows, threads, attention, [](int64_t, const float*, float*) {});
    const float* from = scratch.states.data();
    for (int64_t b = first; b < last; b++) {
        const int64_t real = length_of(b) * width;
        std::copy(from, from + real, x + b * length * width);
        std::fill(x + b * length * width + real, x + (b + 1) * length * width, 0.0f);
        from += real;
    }
}

// The largest of n numbers; -inf where all are NaN.
float largest_number(const float* x, int64_t n) {
    Floats high[4];  // independent maxima, which do not wait for one another
    std::fill(high, high + 4, Floats{} - INFINITY);
    int64_t i = 0;
    for (; i + 4 * LANES <= n; i += 4 * LANES)
        for (int c = 0; c < 4; c++) high[c] = larger(load(x + i + c * LANES), high[c]);
    float largest = largest_of(larger(larger(high[0], high[1]), larger(high[2], high[3])));
    for (; i < n; i++) largest = std::max(largest, x[i]);
    return largest;
}

// The index of the first of n numbers that equals `number`.
int64_t place_of(float number, const float* x, int64_t n) {
    int64_t i = 0;
    for (; i + PANEL <= n; i += PANEL) {
        Ints equal = (load(x + i) == number) | (load(x + i + LANES) == number);
        bool any = false;
        for (int lane = 0; lane < LANES; lane++) any |= equal[lane] != 0;
        if (any) break;
    }
    return std::find(x + i, x + n, number) - x;
}

// log of the sum of exp of n numbers, given their largest.
float log_sum_exp_of(const float* x, int64_t n, float largest) {
    if (!std::isfinite(largest))  // the differences below would be NaN
        return std::any_of(x, x + n, [](float each) { return std::isnan(each); }) ? NAN : largest;
    Floats sums = {};
    float sum = 0;
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) sums += bounded_exponential(load(x + i) - largest);
    for (; i < n; i++) sum += std::exp(x[i] - largest);
    return std::log(total(sums) + sum) + largest;
}

// Compute the vectors x (n_rows, T, D) of T tokens of every row, with positions added; false if a token is not in the table.
bool embed(const Embedding& table, const Positions& positions, const int64_t* tokens, int64_t n_rows, int64_t n_new, int64_t width,
           float* x) {
    for (int64_t m = 0; m < n_rows * n_new; m++, x += width) {
        if (tokens[m] < 0 || tokens[m] >= table.rows) return false;
        const float* vector = table.weight + tokens[m] * width;
        const float* position = positions.added ? positions.added + m % n_new * width : nullptr;
        for (int64_t i = 0; i < width; i++) x[i] = vector[i] * table.scale + (position ? position[i] : 0.0f);
    }
    return true;
}

// The indices of the n largest of `count` numbers, largest first; of equal numbers, the first. NaN is ignored.
void places_of_largest(const float* x, int64_t count, int64_t n, int64_t* places) {
    int64_t there = 0;
    for (int64_t i = 0; i < count; i++) {
        if (std::isnan(x[i]) || (there == n && !(x[i] > x[places[n - 1]]))) continue;
        int64_t at = there < n ? there++ : n - 1;
        for (; at > 0 && x[i] > x[places[at - 1]]; at--) places[at] = places[at - 1];
        places[at] = i;
    }
    for (; there < n; there++) places[there] = 0;
}

// Merge the n numbers x + more of row k into the `n_best` largest so far, largest first; of equal numbers, the first.
void offer(const float* x, int64_t n, float more, int64_t k, int64_t n_best, float* best, int64_t* token, int64_t* row) {
    auto consider = [&](int64_t v) {
        const float value = x[v] + more;
        if (!(value > best[n_best - 1])) return;
        int64_t at = n_best - 1;
        for (; at > 0 && value > best[at - 1]; at--) best[at] = best[at - 1], token[at] = token[at - 1], row[at] = row[at - 1];
        best[at] = value, token[at] = v, row[at] = k;
    };
    int64_t v = 0;
    for (; v + PANEL <= n; v += PANEL) {
        Ints better = (load(x + v) + more > best[n_best - 1]) | (load(x + v + LANES) + more > best[n_best - 1]);
        bool any = false;
        for (int lane = 0; lane < LANES; lane++) any |= better[lane] != 0;
        if (any)
            for (int64_t j = v; j < v + PANEL; j++) consider(j);
    }
    for (; v < n; v++) consider(v);
}

// Choose the most probable next token of the rows first ... last - 1 of a greedy search, from their states.
void choose(const GreedySearch& search, const float* states, int64_t first, int64_t last, int threads) {
    constexpr int64_t BLOCK = 4 * ROWS;  // rows whose logits stay in the cache of the CPU
    const int64_t vocabulary = search.output->outputs, width = search.output->inputs;
    for (int64_t start = first; start < last; start += BLOCK) {
        const int64_t n = std::min(BLOCK, last - start);
        scratch.outputs.resize(n * vocabulary);
        linear(*search.output, states + start * width, n, scratch.outputs.data(), false, threads);
        for (int64_t m = 0; m < n; m++) {
            float *row = scratch.outputs.data() + m * vocabulary, largest = largest_number(row, vocabulary);
            const int64_t number = search.rows[start + m];
            const float normalizer = search.log_prob ? log_sum_exp_of(row, vocabulary, largest) : 0.0f;
            for (int64_t i = 0; i < search.n_suppressed; i++) {
                float& never = row[search.suppressed[i]];
                if (never == largest) largest = NAN;
                never = -INFINITY;
            }
            if (std::isnan(largest)) largest = largest_number(row, vocabulary);
            const int64_t token = largest == -INFINITY ? 0 : place_of(largest, row, vocabulary);
            search.tokens[number * search.longest + search.length] = token;
            if (search.log_prob) search.log_prob[number] += row[token] - normalizer;
        }
    }
}

// Move sentence `from` of the memory to number `to`.
void keep_memory(KVCache& cache, int64_t from, int64_t to) {
    if (cache.memory) cache.memory_slots[to] = cache.memory_slots[from];
    if (cache.memory_lengths) cache.memory_lengths[to] = cache.memory_lengths[from];
}

// Remove the rows that have ended from the search and the cache.
void retire(GreedySearch& search, KVCache& cache) {
    int64_t n = 0;
    for (int64_t m = 0; m < cache.n_rows; m++) {
        const int64_t number = search.rows[m];
        if (search.tokens[number * search.longest + search.length - 1] == search.eos || search.length == search.bounds[number]) continue;
        if (n < m) {
            search.rows[n] = number;
            std::copy_n(cache.slots + m * cache.capacity, cache.length, cache.slots + n * cache.capacity);
            keep_memory(cache, m, n);
        }
        n++;
    }
    cache.n_rows = n;
    if (cache.memory) cache.n_sentences = n;
}

// Extend the hypotheses of one sentence by one token, given its 2 * beam best continuations, best first. A continuation with `eos`
// counts only if it is among the first `beam`. `parents` receives the hypotheses that the active ones continue.
void grow(const BeamSearch& search, int64_t number, const float* log_prob, const int64_t* token, const int64_t* parent,
          int64_t* parents) {
    const int64_t n = search.beam, length = search.length, longest = search.longest, first = number * n;
    int64_t *active = search.active.tokens + first * longest, *finished = search.finished.tokens + first * longest;
    std::vector<int64_t> going(n * length), ended(n * length);
    for (int64_t j = 0; j < n; j++) {
        std::copy_n(active + j * longest, length, going.data() + j * length);
        std::copy_n(finished + j * longest, length, ended.data() + j * length);
    }
    const std::vector<float> ended_log_prob(search.finished.log_prob + first, search.finished.log_prob + first + n);
    std::vector<float> going_score(2 * n), ended_score(2 * n);
    std::vector<int64_t> places(n);
    for (int64_t i = 0; i < 2 * n; i++) {
        const bool ends = token[i] == search.eos;
        const float score = log_prob[i] / search.penalties[length + 1];
        going_score[i] = ends ? -INFINITY : score;
        if (i < n) ended_score[i] = search.finished.score[first + i], ended_score[n + i] = ends ? score : -INFINITY;
    }
    places_of_largest(going_score.data(), 2 * n, n, places.data());
    for (int64_t j = 0; j < n; j++) {
        const int64_t i = places[j];
        parents[j] = parent[i];
        std::copy_n(going.data() + parent[i] * length, length, active + j * longest);
        active[j * longest + length] = token[i];
        search.active.log_prob[first + j] = going_score[i] == -INFINITY ? -INFINITY : log_prob[i];
        search.active.score[first + j] = going_score[i];
    }
    places_of_largest(ended_score.data(), 2 * n, n, places.data());
    for (int64_t j = 0; j < n; j++) {
        const int64_t i = places[j];
        const int64_t* from = i < n ? ended.data() + i * length : going.data() + parent[i - n] * length;
        std::copy_n(from, length, finished + j * longest);
        finished[j * longest + length] = search.eos;
        search.finished.log_prob[first + j] = i < n ? ended_log_prob[i] : log_prob[i - n];
        search.finished.score[first + j] = ended_score[i];
    }
}

// Choose the next token of every hypothesis of the sentences first ... last - 1 of a beam search, from the states of their rows.
void choose(const BeamSearch& search, const float* states, int64_t first, int64_t last, int threads) {
    const int64_t n = search.beam, vocabulary = search.output->outputs, width = search.output->inputs;
    const int64_t block = std::max<int64_t>(1, 4 * ROWS / n);  // sentences whose logits stay in the cache of the CPU
    std::vector<float> best(2 * n);
    std::vector<int64_t> token(2 * n), row(2 * n);
    for (int64_t start = first; start < last; start += block) {
        const int64_t stop = std::min(last, start + block);
        scratch.outputs.resize((stop - start) * n * vocabulary);
        linear(*search.output, states + start * n * width, (stop - start) * n, scratch.outputs.data(), false, threads);
        float* logits = scratch.outputs.data();
        for (int64_t a = start; a < stop; a++) {
            const int64_t number = search.sentences[a];
            std::fill(best.begin(), best.end(), -INFINITY);
            std::fill(token.begin(), token.end(), 0), std::fill(row.begin(), row.end(), 0);
            for (int64_t k = 0; k < n; k++, logits += vocabulary) {
                const float normalizer = log_sum_exp_of(logits, vocabulary, largest_number(logits, vocabulary));
                for (int64_t i = 0; i < search.n_suppressed; i++) logits[search.suppressed[i]] = -INFINITY;
                const float more = search.active.log_prob[number * n + k] - normalizer;
                offer(logits, vocabulary, more, k, 2 * n, best.data(), token.data(), row.data());
            }
            grow(search, number, best.data(), token.data(), row.data(), search.parents + a * n);
        }
    }
}

// Let rows continue from their parents, and remove sentences that are done from the search and the cache.
void retire(BeamSearch& search, KVCache& cache) {
    const int64_t beam = search.beam, capacity = cache.capacity;
    std::vector<int64_t> slots(beam * capacity);
    int64_t n = 0;
    for (int64_t a = 0; a < search.n_sentences; a++) {
        const int64_t number = search.sentences[a], best = number * beam;
        search.lengths[number] = search.length;
        if (search.active.score[best] <= search.finished.score[best + beam - 1] || search.length == search.bounds[number]) continue;
        for (int64_t k = 0; k < beam; k++)
            std::copy_n(cache.slots + (a * beam + search.parents[a * beam + k]) * capacity, cache.length, slots.data() + k * capacity);
        std::copy(slots.begin(), slots.end(), cache.slots + n * beam * capacity);
        search.sentences[n] = number;
        keep_memory(cache, a, n++);
    }
    search.n_sentences = n, cache.n_rows = n * beam;
    if (cache.memory) cache.n_sentences = n;
}

// Run a search for n_steps steps, or until no rows are left; a sentence has `per_sentence` consecutive rows of the cache.
// last_token(m) points to the last token of row m, choose(first, last, threads) chooses the next tokens of some rows, and retire()
// removes rows. x (n_rows, D) is scratch.
template <class Last, class Choose, class Retire>
int32_t steps(const Stack& stack, KVCache& cache, const Embedding& table, Positions positions, float* x, int64_t n_steps, int threads,
              int64_t per_sentence, Last last_token, Choose choose, Retire retire) {
    const int64_t width = stack.d_model;
    return guarded([&] {
        for (; n_steps > 0 && cache.n_rows; n_steps--) {
            const int64_t n = cache.n_rows / per_sentence;
            const int outer = n < threads || cache.n_rows < 4 * threads ? 1 : threads;  // threads share sentences, or each product
            parallel(outer, [&](int t) {
                const int64_t first = n * t / outer * per_sentence, last = n * (t + 1) / outer * per_sentence;
                const int inner = outer == 1 ? threads : 1;
                for (int64_t m = first; m < last; m++) embed(table, positions, last_token(m), 1, 1, width, x + m * width);
                some_rows(stack, cache, positions, x, 1, first, last, inner);
                choose(first, last, inner);
                release_large_scratch();
            });
            cache.length++;
            retire();
            if (positions.added) positions.added += width;
            if (positions.cosines) positions.cosines += stack.d_head / 2, positions.sines += stack.d_head / 2;
        }
        return 0;
    });
}

}  // namespace

extern "C" {

// For the layout of panels in Python: outputs of a panel, 8-bit inputs that a lane takes together, and whether a sum of two
// products may overflow.
int32_t panel = PANEL, pair = PAIR, saturates = SATURATES;

// Set the number of OpenMP threads for calls from this thread, also for PyTorch's operators.
int32_t use_threads(int32_t n) {
    omp_set_num_threads(n);
    return 0;
}

// y (N, outputs) = x (N, inputs) W^T + bias.
int32_t linear_map(const Linear* map, const float* x, int64_t n, float* y, int32_t threads) {
    return guarded([&] {
        linear(*map, x, n, y, false, threads);
        release_large_scratch();
        return 0;
    });
}

// Compute the states x (N, T, D) of T new positions of N rows, and add their keys and values to the cache. Returns 0 if a token is
// not in the vocabulary, else 1.
int32_t decoder_states(const Stack* stack, const KVCache* cache, const Embedding* table, const Positions* positions,
                       const int64_t* tokens, float* x, int64_t n_new, int32_t threads) {
    if (!embed(*table, *positions, tokens, cache->n_rows, n_new, stack->d_model, x)) return 0;
    const int64_t rows = cache->n_rows;
    const int outer = rows < 4 * threads ? 1 : threads;  // threads share rows, or the outputs of each product
    return guarded([&] {
        parallel(outer, [&](int t) {
            some_rows(*stack, *cache, *positions, x, n_new, rows * t / outer, rows * (t + 1) / outer,
                      outer == 1 ? threads : 1);
            release_large_scratch();
        });
        return 1;
    });
}

// Run greedy search for n_steps steps, or until all rows have ended; x (n_rows, D) is scratch. Each row is a sentence.
int32_t greedy_steps(const Stack* stack, KVCache* cache, const Embedding* table, const Positions* positions, GreedySearch* search,
                     float* x, int64_t n_steps, int32_t threads) {
    return steps(*stack, *cache, *table, *positions, x, n_steps, threads, 1,
        [&](int64_t m) { return search->tokens + search->rows[m] * search->longest + search->length - 1; },
        [&](int64_t first, int64_t last, int inner) { choose(*search, x, first, last, inner); },
        [&] { search->length++, retire(*search, *cache); });
}

// Run beam search in the same way.
int32_t beam_steps(const Stack* stack, KVCache* cache, const Embedding* table, const Positions* positions, BeamSearch* search,
                   float* x, int64_t n_steps, int32_t threads) {
    const int64_t n = search->beam;
    return steps(*stack, *cache, *table, *positions, x, n_steps, threads, n,
        [&](int64_t m) { return search->active.tokens + (search->sentences[m / n] * n + m % n) * search->longest + search->length - 1; },
        [&](int64_t first, int64_t last, int inner) { choose(*search, x, first / n, last / n, inner); },
        [&] { search->length++, retire(*search, *cache); });
}

// Replace the vectors x (B, S, D) by their states. `lengths` are those of the rows; null: all have length S.
int32_t encoder_states(const Stack* stack, float* x, int64_t n_sentences, int64_t length, const int64_t* lengths,
                       const Positions* positions, int32_t threads) {
    const int outer = n_sentences < 4 * threads ? 1 : threads;
    return guarded([&] {
        parallel(outer, [&](int t) {
            const int64_t first = n_sentences * t / outer, last = n_sentences * (t + 1) / outer;
            some_sentences(*stack, x, length, lengths, *positions, first, last, outer == 1 ? threads : 1);
            release_large_scratch();
        });
        return 0;
    });
}

// The keys and values of states (N, D) for the cross-attention of every layer, (n_layers, N, 2, K, E).
int32_t project_memory(const Stack* stack, const float* states, int64_t n, float* memory, int32_t threads) {
    return guarded([&] {
        for (int64_t i = 0; i < stack->n_layers; i++, memory += n * stack->layers[0].cross_kv.outputs) {
            const Layer& layer = stack->layers[i];
            linear(layer.cross_kv, states, n, memory, false, threads);
            for (int64_t m = 0; layer.cross_key_norm.weight && m < n; m++) {
                float* keys = memory + m * layer.cross_kv.outputs;
                normalize(layer.cross_key_norm, keys, stack->n_kv_heads, stack->d_head, keys);
            }
        }
        release_large_scratch();
        return 0;
    });
}

// log of the sum of exp of every row.
int32_t log_sum_exp(const float* logits, int64_t n, int64_t vocabulary, float* out, int32_t threads) {
    if (n * vocabulary < (1 << 18)) threads = 1;
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (int64_t m = 0; m < n; m++) {
        const float* row = logits + m * vocabulary;
        out[m] = log_sum_exp_of(row, vocabulary, largest_number(row, vocabulary));
    }
    return 0;
}

// The n largest of scores (A * K, V) + offset (A, K) for each of A sentences, largest first; of equal numbers, the first. Returns
// their values, their tokens, and which of the K rows they are in. If there are fewer, the rest of the values is -inf.
int32_t top_k(const float* scores, const float* offset, int64_t n_sentences, int64_t n_rows, int64_t vocabulary, int64_t n,
               float* values, int64_t* tokens, int64_t* rows, int32_t threads) {
    if (n_sentences * n_rows * vocabulary < (1 << 18)) threads = 1;
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (int64_t a = 0; a < n_sentences; a++) {
        float* best = values + a * n;
        int64_t *token = tokens + a * n, *row = rows + a * n;
        for (int64_t i = 0; i < n; i++) best[i] = -INFINITY, token[i] = row[i] = 0;
        for (int64_t k = 0; k < n_rows; k++)
            offer(scores + (a * n_rows + k) * vocabulary, vocabulary, offset[a * n_rows + k], k, n, best, token, row);
    }
    return 0;
}
}
