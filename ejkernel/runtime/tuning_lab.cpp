#include "ejkernel/runtime/tuning_lab.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <thread>

#include "ejkernel/core/error.h"
#include "ejkernel/runtime/device_timer.h"
#include "ejkernel/runtime/devices.h"

namespace ejk {
namespace {

/// The reference checks the heuristic's config where that is at most this much arithmetic: about a tenth of a second.
constexpr double kReferenceFlops = 5e7, kReferenceFlopsOfGpu = 1e10;
constexpr double kSampleSecondsOfGpu = 2e-3;

bool asks_for_equal_bits(const Plan& plan) {
  for (const ParamField& field : plan.operation().params)
    if (field.name == "deterministic") return field.get(plan.params().data()) == ParamValue(true);
  return false;
}

/// The last kernel on the list that serves the device: the one that is written to be right.
const KernelInfo* reference_for(const Plan& plan) {
  const auto& kernels = plan.choice().operation->kernels;
  const auto found = std::find_if(kernels.rbegin(), kernels.rend(),
                                  [&](const auto& kernel) { return serves(kernel->backend, plan.device()); });
  return found == kernels.rend() ? nullptr : found->get();
}

}  // namespace

PlanLab::PlanLab(const Plan& plan, std::span<const Tensor> inputs, std::span<const ConfigBlock> candidates,
                 double until, Heuristic heuristic)
    : plan_(plan),
      inputs_(inputs),
      candidates_(candidates),
      entries_(candidates.size()),
      proving_(plan, inputs),
      until_(until),
      heuristic_(heuristic),
      compilers_(std::max(1u, std::thread::hardware_concurrency())),
      compiled_(candidates.size()) {}

std::string PlanLab::begin() {
  if (std::string why = made(0); !why.empty()) return why;
  if (std::string why = proving_.run(*entries_[0].plan); !why.empty()) return why;
  expected_ = proving_.results();
  return heuristic_ == Heuristic::is_trusted ? "" : differs_from_reference();
}

std::string PlanLab::differs_from_reference() {
  const double most = plan_.device().kind == DeviceKind::cpu ? kReferenceFlops : kReferenceFlopsOfGpu;
  const KernelInfo* kernel = reference_for(plan_);
  if (plan_.work().flops > most || kernel == nullptr || kernel->name == plan_.kernel().name) return "";
  std::optional<Plan> reference;
  try {
    reference = Plan::make(plan_.operation().name, inputs_, plan_.params(),
                           {.platform = kernel->platform, .kernel = kernel->name});
  } catch (const Unsupported&) {
    return "";  // nothing to compare with
  }
  if (std::string why = proving_.run(*reference); !why.empty()) return "the reference kernel: " + why;
  return proving_.differs_from(expected_);
}

void PlanLab::expect(size_t candidate) {
  if (plan_.kernel().prepare == nullptr || entries_[candidate].plan || compiled_[candidate].valid()) return;
  compiled_[candidate] = std::async(std::launch::async, [this, candidate] {
    compilers_.acquire();
    std::string why = make_plan(candidate);
    compilers_.release();
    return why;
  });
}

std::string PlanLab::made(size_t candidate) {
  if (compiled_[candidate].valid()) return compiled_[candidate].get();
  return entries_[candidate].plan ? "" : make_plan(candidate);
}

std::string PlanLab::admit(size_t candidate) {
  Entry& entry = entries_[candidate];
  if (std::string why = made(candidate); !why.empty()) return why;
  if (std::string why = proving_.run(*entry.plan); !why.empty()) return why;
  if (std::string why = proving_.differs_from(expected_); !why.empty()) return why;
  if (!asks_for_equal_bits(plan_)) return "";
  const std::vector<Array> first = proving_.results();
  if (std::string why = proving_.run(*entry.plan); !why.empty()) return why;
  return proving_.equals(first) ? "" : "two runs of it differ, and the call asks for equal bits";
}

double PlanLab::sample(size_t candidate) try {
  Entry& entry = entries_[candidate];
  // One that replaces a process which has ended meets the candidate for the first time.
  if (!entry.plan && !admit(candidate).empty()) return -1;
  if (plan_.device().kind == DeviceKind::cpu) {
    double began = now_seconds();
    launch(entry, nullptr);
    if (const double took = now_seconds() - began; took >= kLongSeconds) return took;
    began = now_seconds();
    if (entry.runs == 0) {
      launch(entry, nullptr);
      entry.runs = static_cast<int64_t>(std::ceil(kSampleSeconds / std::max(now_seconds() - began, 1e-9)));
      began = now_seconds();
    }
    for (int64_t n = 0; n < entry.runs; ++n) launch(entry, nullptr);
    return (now_seconds() - began) / static_cast<double>(entry.runs);
  }
  sampled_ = candidate;
  if (!device_sampler_)
    device_sampler_ = make_device_sampler(
        plan_.device(), [this](int64_t, void* stream) { launch(entries_[sampled_], stream); },
        2 * static_cast<double>(device_properties(plan_.device()).cache_bytes), kSampleSecondsOfGpu);
  return device_sampler_();
} catch (const std::exception&) {
  return -1;
}

void PlanLab::launch(const Entry& entry, void* stream) {
  entry.plan->run(proving_.inputs(), proving_.outputs(),
                  {.stream = stream, .workspace = proving_.workspace_for(*entry.plan)});
}

bool PlanLab::is_broken() try {
  synchronize(plan_.device());
  return false;
} catch (const std::exception&) {
  return true;
}

std::string PlanLab::make_plan(size_t candidate) {
  PlanOptions options{.platform = plan_.kernel().platform, .kernel = plan_.kernel().name};
  options.config = config_values(plan_.kernel(), candidates_[candidate]);
  std::optional<Plan>& plan = entries_[candidate].plan;
  try {
    plan = Plan::make(plan_.operation().name, inputs_, plan_.params(), options);
  } catch (const std::exception& error) {
    return fmt::format("it cannot be planned: {}", error.what());
  }
  const auto needed = static_cast<double>(plan->workspace_bytes());
  // A GPU's own allocation says when there is too little.
  if (plan_.device().kind == DeviceKind::cpu && needed > free_host_bytes() / 2) {
    plan.reset();
    return fmt::format("it needs a workspace of {:.0f} MiB, more than half of what is free", needed / (1 << 20));
  }
  return "";
}

}  // namespace ejk
