#include "ejkernel/runtime/registry.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>

#include "ejkernel/core/error.h"
#include "ejkernel/core/validate.h"

namespace ejk {
namespace {

struct Ranked {
  std::shared_ptr<const KernelInfo> kernel;
  int priority;
};

struct Entry {
  std::vector<Ranked> ranked;  // highest priority first; equal priorities in order of registration
  std::shared_ptr<const RegisteredOperation> published;
};

void publish(Entry& entry, const Operation& declaration) {
  auto next = std::make_shared<RegisteredOperation>();
  next->declaration = &declaration;
  for (const Ranked& r : entry.ranked) next->kernels.push_back(r.kernel);
  entry.published = std::move(next);
}

void insert(Entry& entry, std::shared_ptr<const KernelInfo> kernel, int priority) {
  auto after =
      std::find_if(entry.ranked.begin(), entry.ranked.end(), [&](const Ranked& r) { return r.priority < priority; });
  entry.ranked.insert(after, {std::move(kernel), priority});
}

void check_complete(const Operation& op, const KernelInfo& kernel) {
  const bool complete = !kernel.name.empty() && kernel.supports != nullptr && kernel.heuristic != nullptr &&
                        kernel.candidates != nullptr && kernel.workspace_bytes != nullptr && kernel.run != nullptr;
  if (!complete)
    throw_invalid(op.name, fmt::format("kernel '{}'", kernel.name), "have a name and all five functions",
                  "one that is missing", "build it with make_kernel<Op, K>()");
}

}  // namespace

struct KernelRegistry::State {
  mutable std::mutex mutex;
  std::map<std::string, Entry, std::less<>> entries;
  std::vector<std::string> order;
  std::atomic<uint64_t> generation{1};
};

KernelRegistry& KernelRegistry::instance() {
  static KernelRegistry registry;
  return registry;
}

KernelRegistry::KernelRegistry() : state_(std::make_unique<State>()) {
  for (const Operation* op : builtin_operations()) add_operation(*op);
}

void KernelRegistry::add_operation(const Operation& declaration) {
  const std::lock_guard lock(state_->mutex);
  if (state_->entries.contains(declaration.name))
    throw_invalid(declaration.name, "the operation's name", "be new", "one that is registered", "choose another name");
  Entry entry;
  const auto kernels = declaration.kernels();
  int priority = KernelRegistry::kStep * (static_cast<int>(kernels.size()) - 1);
  for (const KernelInfo* kernel : kernels) {
    check_complete(declaration, *kernel);
    insert(entry, std::make_shared<KernelInfo>(*kernel), priority);
    priority -= KernelRegistry::kStep;
  }
  publish(entry, declaration);
  state_->entries.emplace(declaration.name, std::move(entry));
  state_->order.emplace_back(declaration.name);
  state_->generation.fetch_add(1, std::memory_order_release);
}

void KernelRegistry::add(std::string_view operation, KernelInfo kernel, int priority) {
  const Operation& declaration = *find(operation)->declaration;
  check_complete(declaration, kernel);
  validate_signatures(declaration, kernel);
  const std::lock_guard lock(state_->mutex);
  Entry& entry = state_->entries.find(operation)->second;
  for (const Ranked& r : entry.ranked)
    if (r.kernel->name == kernel.name)
      throw_invalid(operation, fmt::format("kernel name '{}'", kernel.name), "be new for this operation",
                    "one that is registered", "choose another name");
  insert(entry, std::make_shared<const KernelInfo>(std::move(kernel)), priority);
  publish(entry, declaration);
  state_->generation.fetch_add(1, std::memory_order_release);
}

std::shared_ptr<const RegisteredOperation> KernelRegistry::find(std::string_view name) const {
  const std::lock_guard lock(state_->mutex);
  const auto found = state_->entries.find(name);
  if (found == state_->entries.end())
    throw_invalid("ejkernel", "the operation", "be a registered one", fmt::format("'{}'", name),
                  fmt::format("known: {}", fmt::join(state_->order, ", ")));
  return found->second.published;
}

std::vector<std::string> KernelRegistry::names() const {
  const std::lock_guard lock(state_->mutex);
  return state_->order;
}

uint64_t KernelRegistry::generation() const { return state_->generation.load(std::memory_order_acquire); }

std::vector<std::string> signature_of(const Operation& op) {
  std::vector<std::string> lines;
  for (const TensorField& f : op.inputs) lines.push_back(fmt::format("input {}: {}", f.name, f.contract.text()));
  for (const ParamField& f : op.params)
    lines.push_back(fmt::format("param {}: {} = {}", f.name, name(f.type), to_string(f.get(op.default_params.data()))));
  for (const TensorField& f : op.outputs) lines.push_back(fmt::format("output {}: {}", f.name, f.contract.text()));
  return lines;
}

void validate_signatures(const Operation& op, const KernelInfo& kernel) {
  if (kernel.signature.empty()) return;  // typed against this very declaration by make_kernel
  const std::vector<std::string> declared = signature_of(op);
  for (size_t i = 0; i < std::max(declared.size(), kernel.signature.size()); ++i) {
    const std::string expected = i < declared.size() ? declared[i] : "nothing more";
    const std::string got = i < kernel.signature.size() ? kernel.signature[i] : "nothing";
    if (expected != got)
      throw_invalid(op.name, fmt::format("field {} of kernel '{}'", i, kernel.name), fmt::format("be '{}'", expected),
                    fmt::format("'{}'", got), "declare the kernel for this version of the operation");
  }
}

}  // namespace ejk
