// A small operation for tests of the machinery around kernels: every kind of parameter, a kernel with a config and one
// that declines, a gradient. y = scale * x + shift.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ejkernel/core/validate.h"
#include "ejkernel/runtime/api.h"
#include "ejkernel/runtime/registry.h"

namespace ejk::testing {

enum class ToyMode : uint8_t { plain, fancy };
constexpr std::array<std::string_view, 2> enum_names(ToyMode) { return {"plain", "fancy"}; }

struct ToyBackward;

struct Toy {
  static constexpr std::string_view kName = "toy";
  static constexpr int kRevision = 3;
  static constexpr std::string_view kSummary = "y = scale * x + shift";
  static constexpr std::string_view kSource = "none";
  static constexpr std::string_view kGradient = "toy_backward";
  using Gradient = ToyBackward;

  struct Inputs {
    Tensor x = {}, weights = {};
  };
  struct Params {
    double scale = 1;
    double shift = 0;
    bool flip = false;
    ToyMode mode = ToyMode::plain;
    int64_t reach = 0;
    Window window = {};
    std::optional<double> limit = {};
  };
  template <class T>
  struct Out {
    T y = {};
  };
  using Outputs = Out<Tensor>;
  using Results = Out<Array>;

  static constexpr auto inputs() {
    return std::array{TensorField{"x", "float[batch, dim]", "what is scaled"},
                      TensorField{"weights", "@x?[batch/1, dim]", "not used"}};
  }
  static constexpr auto outputs() { return std::array{TensorField{"y", "@x[batch, dim]", "the result"}}; }
  static constexpr auto params() {
    return std::array{param<&Params::scale>("scale", Key::none, "the factor", finite()),
                      param<&Params::shift>("shift", Key::present, "the addend"),
                      param<&Params::flip>("flip", Key::value, "no effect"),
                      param<&Params::mode>("mode", Key::value, "no effect"),
                      param<&Params::reach>("reach", Key::bucket, "no effect", at_least(0)),
                      param<&Params::window>("window", Key::bucket, "no effect"),
                      param<&Params::limit>("limit", Key::present, "no effect", positive())};
  }
  static Work work(const Call<Toy>& call) {
    const double n = static_cast<double>(call.inputs.x.num_elements());
    return {.flops = 2 * n, .bytes = 8 * n};
  }
  static std::span<const KernelInfo* const> kernels();
};

/// d_x = scale * d_y; `batch` is filled from the forward's dimension of that name.
struct ToyBackward {
  static constexpr std::string_view kName = "toy_backward";
  static constexpr int kRevision = 1;
  static constexpr std::string_view kSummary = "Gradient of toy.";
  static constexpr std::string_view kSource = "none";
  struct Inputs {
    Tensor d_y = {};
  };
  struct Params {
    double scale = 1;
    int64_t batch = 0;
  };
  template <class T>
  struct Out {
    T x = {};
  };
  using Outputs = Out<Tensor>;
  using Results = Out<Array>;
  static constexpr auto inputs() { return std::array{TensorField{"d_y", "float[rows, dim]", "cotangent of y"}}; }
  static constexpr auto outputs() { return std::array{TensorField{"x", "@d_y[rows, dim]", "gradient of x"}}; }
  static constexpr auto params() {
    return std::array{param<&Params::scale>("scale", Key::none, "as in toy", finite()),
                      param<&Params::batch>("batch", Key::none, "x's first extent", at_least(0))};
  }
  static void check(const Inputs&, const Params& params, Dims& dims) {
    if (dims["rows"] != params.batch)
      throw_invalid(kName, "batch", "equal d_y rows " + std::to_string(dims["rows"]), std::to_string(params.batch),
                    "differentiate through vjp");
  }
  static Work work(const Call<ToyBackward>&) { return {}; }
  static std::span<const KernelInfo* const> kernels();
};

inline void toy_scale(const Tensor& from, const Tensor& to, double scale, double shift) {
  if (!to.present()) return;
  for (int64_t i = 0; i < to.num_elements(); ++i) set(to, i, scale * get(from, i) + shift);
}

/// Declines everything.
struct ToyPicky {
  static constexpr std::string_view kName = "picky";
  static constexpr Platform kPlatform = Platform::cpu;
  static Support supports(const Call<Toy>&, const DeviceProperties&) { return Support::no("nothing is good enough"); }
  static void run(const Call<Toy>&, const RunContext&) {}
};

/// Serves f32; its heuristic follows the batch.
struct ToyFast {
  static constexpr std::string_view kName = "fast";
  static constexpr Platform kPlatform = Platform::cpu;
  static constexpr int kRevision = 2;
  struct Config {
    int block = 16;
    int unroll = 1;
    static constexpr auto fields() {
      return std::array{config_field<&Config::block, 16, 32, 64>("block", "rows at a time"),
                        config_field<&Config::unroll, 1, 2, 4>("unroll", "columns at a time")};
    }
  };
  static inline std::atomic<int> last_block = 0;
  static inline std::atomic<bool> has_wide_unit = false;

  static Support supports(const Call<Toy>& call, const DeviceProperties&) {
    return call.inputs.x.dtype == DType::f32 ? Support::yes() : Support::no("dtype must be f32");
  }
  static Config heuristic(const Call<Toy>& call, const DeviceProperties&) {
    return {.block = call.inputs.x.shape[0] > 64 ? 64 : 16};
  }
  static std::vector<Config> candidates(const Call<Toy>&, const DeviceProperties&) {
    return {{.block = 16}, {.block = 32}, {.block = 64}};
  }
  static Support runs_here(const Config& config, const DeviceProperties&) {
    if (config.unroll < 4 || has_wide_unit) return Support::yes();
    return Support::no("unroll=4 needs a unit that this machine lacks");
  }
  static size_t workspace_bytes(const Call<Toy>&, const Config& config, const DeviceProperties&) {
    return static_cast<size_t>(config.block);
  }
  static void run(const Call<Toy>& call, const Config& config, const RunContext& context) {
    last_block = config.block;
    context.workspace[static_cast<size_t>(config.block) - 1] = std::byte{1};
    toy_scale(call.inputs.x, call.outputs.y, call.params.scale, call.params.shift);
  }
};

struct ToyReference {
  static constexpr std::string_view kName = "reference";
  static constexpr Platform kPlatform = Platform::reference;
  static void run(const Call<Toy>& call, const RunContext&) {
    toy_scale(call.inputs.x, call.outputs.y, call.params.scale, call.params.shift);
  }
};

struct ToyBackwardReference {
  static constexpr std::string_view kName = "reference";
  static constexpr Platform kPlatform = Platform::reference;
  static void run(const Call<ToyBackward>& call, const RunContext&) {
    toy_scale(call.inputs.d_y, call.outputs.x, call.params.scale, 0);
  }
};

inline std::span<const KernelInfo* const> Toy::kernels() {
  static const KernelInfo picky = make_kernel<Toy, ToyPicky>(), fast = make_kernel<Toy, ToyFast>(),
                          reference = make_kernel<Toy, ToyReference>();
  static const KernelInfo* const list[] = {&picky, &fast, &reference};
  return list;
}

inline std::span<const KernelInfo* const> ToyBackward::kernels() {
  static const KernelInfo reference = make_kernel<ToyBackward, ToyBackwardReference>();
  static const KernelInfo* const list[] = {&reference};
  return list;
}

/// Registers both operations, once per process.
inline void register_toys() {
  static const bool done = [] {
    KernelRegistry::instance().add_operation<Toy>();
    KernelRegistry::instance().add_operation<ToyBackward>();
    return true;
  }();
  (void)done;
}

}  // namespace ejk::testing
