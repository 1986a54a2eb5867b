// A plug-in as it should be: a kernel for an operation of the library, and an operation of its own.
#include <ejkernel/ejkernel.h>
#include <ejkernel/runtime/plugins.h>

namespace {

/// Answers with zeros, so that a test can tell it from the library's kernels.
struct Zeros {
  static constexpr std::string_view kName = "zeros";
  static constexpr ejk::Platform kPlatform = ejk::Platform::cpu;
  static void run(const ejk::Call<ejk::FlashAttention>& call, const ejk::RunContext&) {
    for (const ejk::Tensor& output : ejk::to_array(call.outputs))
      for (int64_t i = 0; i < output.num_elements(); ++i) ejk::set(output, i, 0);
  }
};

struct Negate {
  static constexpr std::string_view kName = "negate";
  static constexpr int kRevision = 1;
  static constexpr std::string_view kSummary = "y = -x", kSource = "none";
  struct Inputs {
    ejk::Tensor x = {};
  };
  struct Params {};
  template <class T>
  struct Out {
    T y = {};
  };
  using Outputs = Out<ejk::Tensor>;
  using Results = Out<ejk::Array>;
  static constexpr auto inputs() { return std::array{ejk::TensorField{"x", "float[dim]", "what is negated"}}; }
  static constexpr auto outputs() { return std::array{ejk::TensorField{"y", "@x[dim]", "the result"}}; }
  static constexpr auto params() { return std::array<ejk::ParamField, 0>{}; }
  static ejk::Work work(const ejk::Call<Negate>&) { return {}; }
  static std::span<const ejk::KernelInfo* const> kernels();
};

struct Reference {
  static constexpr std::string_view kName = "reference";
  static constexpr ejk::Platform kPlatform = ejk::Platform::reference;
  static void run(const ejk::Call<Negate>& call, const ejk::RunContext&) {
    for (int64_t i = 0; i < call.outputs.y.num_elements(); ++i)
      ejk::set(call.outputs.y, i, -ejk::get(call.inputs.x, i));
  }
};

std::span<const ejk::KernelInfo* const> Negate::kernels() {
  static const ejk::KernelInfo reference = ejk::make_kernel<Negate, Reference>();
  static const ejk::KernelInfo* const list[] = {&reference};
  return list;
}

}  // namespace

EJK_PLUGIN(registry) {
  // Asking for the registry from here is fine, too.
  if (&registry != &ejk::KernelRegistry::instance()) throw ejk::Internal("two registries in one process");
  registry.add<ejk::FlashAttention, Zeros>(10000);
  registry.add_operation<Negate>();
}
