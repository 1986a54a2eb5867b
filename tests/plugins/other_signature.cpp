// A kernel that was compiled for another declaration of its operation.
#include <ejkernel/ejkernel.h>
#include <ejkernel/runtime/plugins.h>

namespace {
struct Stale {
  static constexpr std::string_view kName = "stale";
  static constexpr ejk::Platform kPlatform = ejk::Platform::cpu;
  static void run(const ejk::Call<ejk::FlashAttention>&, const ejk::RunContext&) {}
};
}  // namespace

EJK_PLUGIN(registry) {
  ejk::KernelInfo kernel = ejk::make_kernel<ejk::FlashAttention, Stale>();
  kernel.signature = ejk::signature_of<ejk::FlashAttention>();
  kernel.signature[2] = "input values: float[rows, value_dim]";
  registry.add("flash_attention", kernel, 1);
}
