// Fails after its first registration, which must not stay.
#include <ejkernel/ejkernel.h>
#include <ejkernel/runtime/plugins.h>

namespace {
struct Lost {
  static constexpr std::string_view kName = "lost";
  static constexpr ejk::Platform kPlatform = ejk::Platform::cpu;
  static void run(const ejk::Call<ejk::FlashAttention>&, const ejk::RunContext&) {}
};
}  // namespace

EJK_PLUGIN(registry) {
  registry.add<ejk::FlashAttention, Lost>(1);
  registry.add<ejk::FlashAttention, Lost>(2);
}
