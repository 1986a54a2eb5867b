// A small operation that writes one of its inputs, for tests of what that means around kernels: rows[b, at[b, t]] =
// scale * values[b, t], every other row stays; sums[b, t] is the sum of that row.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "ejkernel/runtime/api.h"
#include "ejkernel/runtime/registry.h"

namespace ejk::testing {

struct ToyAppend {
  static constexpr std::string_view kName = "toy_append";
  static constexpr int kRevision = 1;
  static constexpr std::string_view kSummary = "Writes rows into a buffer.";
  static constexpr std::string_view kSource = "none";

  struct Inputs {
    Tensor rows = {}, values = {}, at = {};
  };
  struct Params {
    double scale = 1;
    bool numbered = false;
  };
  template <class T>
  struct Out {
    T rows = {}, sums = {};
  };
  using Outputs = Out<Tensor>;
  using Results = Out<Array>;

  static constexpr auto inputs() {
    return std::array{
        TensorField{"rows", "float[batch, num_rows, dim]", "the buffer"},
        TensorField{"values", "@rows[batch, num_tokens, dim]", "what is written"},
        TensorField{"at", "int32[batch, num_tokens]", "the row that each goes to; none for other numbers"}};
  }
  static constexpr auto outputs() {
    return std::array{TensorField{"rows", "@rows&[batch, num_rows, dim]", "the buffer with the new rows"},
                      TensorField{"sums", "float32[batch, num_tokens]", "of what is written"}};
  }
  static constexpr auto params() {
    return std::array{param<&Params::scale>("scale", Key::none, "the factor", finite()),
                      param<&Params::numbered>("numbered", Key::value, "entries are no calls of their own")};
  }
  static std::string_view batch_dim(const Params& params) { return params.numbered ? "" : "batch"; }
  static Work work(const Call<ToyAppend>& call) {
    const double n = static_cast<double>(call.inputs.values.num_elements());
    return {.flops = n, .bytes = 8 * n};
  }
  static std::span<const KernelInfo* const> kernels();
};

/// `call.outputs.rows` is always there.
inline void toy_append(const Call<ToyAppend>& call) {
  const auto& [rows, values, at] = call.inputs;
  const Tensor &out = call.outputs.rows, &sums = call.outputs.sums;
  const int64_t num_rows = rows.shape[1], num_tokens = values.shape[1], dim = rows.shape[2];
  for (int64_t token = 0; token < at.num_elements(); ++token) {
    const auto row = static_cast<int64_t>(get(at, token));
    double sum = 0;
    for (int64_t d = 0; d < dim; ++d) {
      const double value = call.params.scale * get(values, token * dim + d);
      sum += value;
      if (row >= 0 && row < num_rows) set(out, (token / num_tokens * num_rows + row) * dim + d, value);
    }
    if (sums.present()) set(sums, token, sum);
  }
}

/// What a config of the kernel below does besides, or instead.
enum class AppendDeed : int { nothing, forgets, elsewhere, adds, outside, count };

struct ToyAppendConfig {
  int deed = 0;
  static constexpr auto fields() {
    return std::array{config_field<&ToyAppendConfig::deed, 0, 1, 2, 3, 4>("deed", "what it does wrong")};
  }
};

/// Serves buffers of at least one element, where input and output are the same tensor whoever asks.
struct ToyAppendFast {
  static constexpr std::string_view kName = "fast";
  static constexpr Platform kPlatform = Platform::cpu;
  using Config = ToyAppendConfig;
  static inline std::vector<Config> offered = {ToyAppendConfig{}};

  static Support supports(const Call<ToyAppend>& call, const DeviceProperties&) {
    const Tensor &in = call.inputs.rows, &out = call.outputs.rows;
    const bool is_one = in.data == out.data && in.strides == out.strides;
    return !is_one || in.num_elements() == 0 ? Support::no("the buffer must be there") : Support::yes();
  }
  static Config heuristic(const Call<ToyAppend>&, const DeviceProperties&) { return {}; }
  static std::vector<Config> candidates(const Call<ToyAppend>&, const DeviceProperties&) { return offered; }
  static void run(const Call<ToyAppend>& call, const Config& config, const RunContext&) {
    const auto deed = static_cast<AppendDeed>(config.deed);
    const Tensor& out = call.outputs.rows;
    Call<ToyAppend> other = call;
    const Array own = deed == AppendDeed::forgets ? contiguous(out) : Array();
    if (deed == AppendDeed::forgets) other.outputs.rows = own;
    const double before = get(out, 0);
    toy_append(other);
    if (deed == AppendDeed::elsewhere) set(out, out.num_elements() - 1, 77);
    if (deed == AppendDeed::adds) set(out, 0, get(out, 0) + before + 1);
    if (deed == AppendDeed::outside) store_from_double(out.data, out.dtype, element_range(out)[1], 0);
  }
};

struct ToyAppendReference {
  static constexpr std::string_view kName = "reference";
  static constexpr Platform kPlatform = Platform::reference;
  static void run(const Call<ToyAppend>& call, const RunContext&) { toy_append(call); }
};

inline std::span<const KernelInfo* const> ToyAppend::kernels() {
  static const KernelInfo fast = make_kernel<ToyAppend, ToyAppendFast>(),
                          reference = make_kernel<ToyAppend, ToyAppendReference>();
  static const KernelInfo* const list[] = {&fast, &reference};
  return list;
}

/// Registers the operation, once per process.
inline void register_toy_append() {
  static const bool done = [] {
    KernelRegistry::instance().add_operation<ToyAppend>();
    return true;
  }();
  (void)done;
}

}  // namespace ejk::testing
