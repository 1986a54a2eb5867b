#include "ejkernel/platform/cpu/simd_target.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ejkernel/platform/cpu/simd_target.cpp"
#include <hwy/foreach_target.h>  // must come before simd-inl.h

#include "ejkernel/platform/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ejk::cpu::HWY_NAMESPACE {
const char* target_name() { return hwy::TargetName(HWY_TARGET); }
bool native_bf16_dot() { return HWY_NATIVE_DOT_BF16 != 0; }
}  // namespace ejk::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ejk::cpu {
namespace {

HWY_EXPORT(target_name);
HWY_EXPORT(native_bf16_dot);

void choose_among(int64_t targets) {
  hwy::SetSupportedTargetsForTest(targets);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

}  // namespace

std::string_view simd_target() { return HWY_DYNAMIC_DISPATCH(target_name)(); }

bool has_bf16_dot() { return HWY_DYNAMIC_DISPATCH(native_bf16_dot)(); }

std::vector<std::string_view> simd_targets() {
  std::vector<std::string_view> names;
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) names.emplace_back(hwy::TargetName(target));
  return names;
}

ScopedSimdTarget::ScopedSimdTarget(std::string_view name) {
  for (const int64_t target : hwy::SupportedAndGeneratedTargets())
    if (hwy::TargetName(target) == name) choose_among(target);
}
ScopedSimdTarget::~ScopedSimdTarget() { choose_among(0); }

}  // namespace ejk::cpu
#endif
