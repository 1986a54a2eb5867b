#include "ejkernel/runtime/registry.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <utility>

#include "ejkernel/core/error.h"
#include "ejkernel/core/validate.h"
#include "ejkernel/runtime/plugins.h"

namespace ejk {
namespace {

/// The batch that this thread registers in; 0 outside of any.
thread_local uint64_t current_batch = 0;

struct Ranked {
  std::shared_ptr<const KernelInfo> kernel;
  int priority;
  uint64_t batch;
};

struct Entry {
  std::vector<Ranked> ranked;  // highest priority first; equal priorities in order of registration
  std::shared_ptr<const RegisteredOperation> published;
  uint64_t batch;
};

void publish(Entry& entry, const Operation& declaration) {
  auto next = std::make_shared<RegisteredOperation>();
  next->declaration = &declaration;
  for (const Ranked& r : entry.ranked) next->kernels.push_back(r.kernel);
  entry.published = std::move(next);
}

void insert(Entry& entry, std::string_view operation, std::shared_ptr<const KernelInfo> kernel, int priority) {
  for (const Ranked& r : entry.ranked)
    if (r.kernel->name == kernel->name)
      throw_invalid(operation, fmt::format("kernel name '{}'", kernel->name), "be new for this operation",
                    "one that is registered", "choose another name");
  const auto after =
      std::find_if(entry.ranked.begin(), entry.ranked.end(), [&](const Ranked& r) { return r.priority < priority; });
  entry.ranked.insert(after, {std::move(kernel), priority, current_batch});
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

  Entry& get(std::string_view name) {
    const auto found = entries.find(name);
    if (found == entries.end())
      throw_invalid("ejkernel", "the operation", "be a registered one", fmt::format("'{}'", name),
                    fmt::format("known: {}", fmt::join(order, ", ")));
    return found->second;
  }
};

const KernelInfo* find_kernel(const RegisteredOperation& operation, std::string_view name) {
  const auto found = std::find_if(operation.kernels.begin(), operation.kernels.end(),
                                  [&](const auto& kernel) { return kernel->name == name; });
  return found == operation.kernels.end() ? nullptr : found->get();
}

KernelRegistry& KernelRegistry::instance() {
  static auto* registry = new KernelRegistry;  // never destroyed: calls may come while the process exits
  load_environment_plugins(*registry);
  return *registry;
}

KernelRegistry::KernelRegistry() : state_(std::make_unique<State>()) {
  for (const Operation* op : builtin_operations()) add_operation(*op);
}

void KernelRegistry::add_operation(const Operation& declaration) {
  const std::lock_guard lock(state_->mutex);
  if (state_->entries.contains(declaration.name))
    throw_invalid(declaration.name, "the operation's name", "be new", "one that is registered", "choose another name");
  Entry entry{.ranked = {}, .published = {}, .batch = current_batch};
  const auto kernels = declaration.kernels();
  int priority = KernelRegistry::kStep * (static_cast<int>(kernels.size()) - 1);
  for (const KernelInfo* kernel : kernels) {
    check_complete(declaration, *kernel);
    insert(entry, declaration.name, std::make_shared<const KernelInfo>(*kernel), priority);
    priority -= KernelRegistry::kStep;
  }
  publish(entry, declaration);
  std::string name(declaration.name);
  state_->order.reserve(state_->order.size() + 1);
  state_->entries.emplace(name, std::move(entry));
  state_->order.push_back(std::move(name));
  state_->generation.fetch_add(1, std::memory_order_release);
}

void KernelRegistry::add(std::string_view operation, KernelInfo kernel, int priority) {
  const std::lock_guard lock(state_->mutex);
  Entry& entry = state_->get(operation);
  const Operation& declaration = *entry.published->declaration;
  check_complete(declaration, kernel);
  validate_signatures(declaration, kernel);
  Entry next = entry;
  insert(next, operation, std::make_shared<const KernelInfo>(std::move(kernel)), priority);
  publish(next, declaration);
  entry = std::move(next);
  state_->generation.fetch_add(1, std::memory_order_release);
}

std::shared_ptr<const RegisteredOperation> KernelRegistry::find(std::string_view name) const {
  const std::lock_guard lock(state_->mutex);
  return state_->get(name).published;
}

std::vector<std::string> KernelRegistry::names() const {
  const std::lock_guard lock(state_->mutex);
  return state_->order;
}

KernelRegistry::Batch::Batch(KernelRegistry& registry) : registry_(registry), outer_(current_batch) {
  static std::atomic<uint64_t> batches{0};
  current_batch = ++batches;
}

KernelRegistry::Batch::~Batch() {
  const uint64_t batch = std::exchange(current_batch, outer_);
  if (kept_) return;
  State& state = *registry_.state_;
  const std::lock_guard lock(state.mutex);
  std::erase_if(state.entries, [&](const auto& named) { return named.second.batch == batch; });
  std::erase_if(state.order, [&](const std::string& name) { return !state.entries.contains(name); });
  for (auto& [name, entry] : state.entries) {
    const auto removed = std::erase_if(entry.ranked, [&](const Ranked& r) { return r.batch == batch; });
    if (removed > 0) publish(entry, *entry.published->declaration);
  }
  state.generation.fetch_add(1, std::memory_order_release);
}

uint64_t KernelRegistry::generation() const { return state_->generation.load(std::memory_order_acquire); }

std::vector<std::string> signature_of(std::span<const TensorField> inputs, std::span<const ParamField> params,
                                      std::span<const TensorField> outputs, const ParamsBlock& defaults) {
  std::vector<std::string> lines;
  for (const TensorField& f : inputs) lines.push_back(fmt::format("input {}: {}", f.name, f.contract.text()));
  for (const ParamField& f : params)
    lines.push_back(fmt::format("param {}: {} = {}", f.name, name(f.type), to_string(f.get(defaults.data()))));
  for (const TensorField& f : outputs) lines.push_back(fmt::format("output {}: {}", f.name, f.contract.text()));
  return lines;
}

std::vector<std::string> signature_of(const Operation& op) {
  return signature_of(op.inputs, op.params, op.outputs, op.default_params);
}

void validate_signatures(const Operation& op, const KernelInfo& kernel) {
  if (kernel.signature.empty()) return;  // built in: typed against this very declaration
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
