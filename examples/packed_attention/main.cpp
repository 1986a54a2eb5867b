// Causal attention over eight packed sequences of different lengths, with four query heads to a kv head, in bf16: run,
// checked against float64, timed, and set beside what this machine can do at most.
#include <ejkernel/ejkernel.h>
#include <ejkernel/runtime/calibration.h>
#include <ejkernel/runtime/config.h>
#include <ejkernel/runtime/timer.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <exception>
#include <random>
#include <vector>

namespace {

constexpr int64_t kHeads = 32, kKvHeads = 8, kHeadDim = 128;
constexpr int64_t kLengths[] = {640, 384, 300, 256, 129, 64, 17, 1};

ejk::Array random_normal(const ejk::Shape& shape, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  ejk::Array array(ejk::DType::bf16, shape);
  for (int64_t i = 0; i < array.num_elements(); ++i)
    array.as<ejk::bf16_t>()[i] = ejk::from_float<ejk::bf16_t>(normal(random));
  return array;
}

/// Sequence s owns rows [offsets[s], offsets[s + 1]) of the packed tensors.
ejk::Array offsets_of_sequences() {
  ejk::Array offsets(ejk::DType::i32, {std::ssize(kLengths) + 1});
  int32_t end = 0;
  offsets.as<int32_t>()[0] = end;
  for (size_t s = 0; s < std::size(kLengths); ++s)
    offsets.as<int32_t>()[s + 1] = end += static_cast<int32_t>(kLengths[s]);
  return offsets;
}

/// A view of the first heads of a [rows, heads, dim] tensor: no copy, only other extents.
ejk::Tensor first_heads(const ejk::Tensor& t, int64_t heads) {
  return ejk::Tensor(t.data, t.dtype, {t.shape[0], heads, t.shape[2]}, t.strides);
}

/// The largest error, and the largest in units of two roundings to bf16 (8 bits), of which probabilities and results
/// cost one each. Over the query heads of the first kv head; the reference kernel on float64 copies is the truth.
struct Error {
  double largest = 0, relative = 0;
};
Error error_of(const ejk::FlashAttention::Inputs& in, const ejk::FlashAttention::Params& params,
               const ejk::Tensor& out) {
  constexpr int64_t kGroup = kHeads / kKvHeads;
  const ejk::Array query = ejk::convert(first_heads(in.query, kGroup), ejk::DType::f64);
  const ejk::Array key = ejk::convert(first_heads(in.key, 1), ejk::DType::f64);
  const ejk::Array value = ejk::convert(first_heads(in.value, 1), ejk::DType::f64);
  const auto truth = ejk::flash_attention(
      {.query = query, .key = key, .value = value, .cu_seqlens_q = in.cu_seqlens_q, .cu_seqlens_k = in.cu_seqlens_k},
      params, {.plan = {.kernel = "reference"}});
  const ejk::Array got = ejk::convert(first_heads(out, kGroup), ejk::DType::f64);
  Error worst;
  for (int64_t i = 0; i < got.num_elements(); ++i) {
    const double right = truth.out.as<double>()[i], error = std::abs(got.as<double>()[i] - right);
    if (std::isnan(error)) return {INFINITY, INFINITY};
    worst.largest = std::max(worst.largest, error);
    worst.relative = std::max(worst.relative, error / (2 * 0x1p-8 * std::max(1.0, std::abs(right))));
  }
  return worst;
}

/// Multiply-adds count twice: query @ key^T and probabilities @ value, for the pairs under the diagonals.
double operations() {
  double pairs = 0;
  for (const int64_t length : kLengths) pairs += static_cast<double>(length * (length + 1)) / 2;
  return pairs * kHeads * 2 * 2 * kHeadDim;
}

int run() {
  const ejk::Array offsets = offsets_of_sequences();
  const int64_t tokens = offsets.as<int32_t>()[std::size(kLengths)];
  const ejk::Array query = random_normal({tokens, kHeads, kHeadDim}, 1);
  const ejk::Array key = random_normal({tokens, kKvHeads, kHeadDim}, 2);
  const ejk::Array value = random_normal({tokens, kKvHeads, kHeadDim}, 3);
  const ejk::FlashAttention::Inputs inputs = {
      .query = query, .key = key, .value = value, .cu_seqlens_q = offsets, .cu_seqlens_k = offsets};
  const ejk::FlashAttention::Params params = {.causal = true};
  std::printf("flash_attention: %zu packed sequences, %lld tokens, %d query heads on %d kv heads of %d, bf16, causal\n",
              std::size(kLengths), static_cast<long long>(tokens), static_cast<int>(kHeads), static_cast<int>(kKvHeads),
              static_cast<int>(kHeadDim));

  // Choose once, run many times: a plan looks at shapes and parameters, never at data.
  const auto plan = ejk::plan<ejk::FlashAttention>(inputs, params);
  const auto results = plan.allocate_outputs();
  const ejk::Array workspace(ejk::DType::u8, {static_cast<int64_t>(plan.workspace_bytes())});
  const ejk::RunOptions options = {.workspace = {workspace.as<std::byte>(), plan.workspace_bytes()}};
  const auto run_once = [&](int64_t) { plan.run(inputs, {.out = results.out}, options); };
  const ejk::Summary time = ejk::measure(ejk::make_sampler(run_once), {.max_seconds = 1, .min_samples = 5});
  const ejk::Peaks peaks = ejk::measure_peaks();

  const double rate = operations() / time.median;
  const Error error = error_of(inputs, params, results.out);
  const bool right = error.relative <= 1;
  std::printf("  kernel  %s, config %s, from tier %s\n", plan.kernel().name.c_str(),
              ejk::to_string(plan.kernel(), plan.choice().config).c_str(),
              std::string(ejk::name(plan.choice().tier)).c_str());
  std::printf("  time    %.1f ms ± %.1f %%\n", 1e3 * time.median, 100 * time.spread());
  std::printf("  speed   %.1f GFLOP/s, %.0f %% of the %.0f that %d threads reach here with float32 multiply-adds\n",
              rate / 1e9, 100 * rate / peaks.flops_per_second, peaks.flops_per_second / 1e9, peaks.num_threads);
  std::printf("  check   largest error %.2g against float64 on %d of %d heads, %.0f %% of two bf16 roundings: %s\n",
              error.largest, static_cast<int>(kHeads / kKvHeads), static_cast<int>(kHeads), 100 * error.relative,
              right ? "right" : "WRONG");
  return right ? 0 : 1;
}

}  // namespace

int main() {
  try {
    const ejk::PolicyOverride no_tuning({.autotune = false});  // an example is over before a better config pays
    const int code = run();
    std::printf(
        "\nNext:\n"
        "  ./dev bench flash_attention                      the models' shapes, against this machine's peak\n"
        "  build/release/bin/ejk explain flash_attention --num_seqs 8 --causal    why this kernel\n"
        "  build/release/bin/ejk check --seconds 30         random problems against float64\n"
        "  docs/operations/index.md                         what there is; this program is "
        "examples/packed_attention\n");
    return code;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "packed_attention: %s\n", error.what());
    return 1;
  }
}
