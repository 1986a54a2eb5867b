// Every operation and every kernel the process knows, in order.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ejkernel/core/export.h"
#include "ejkernel/core/operation.h"

namespace ejk {

/// The operations that the library ships; their list stands in ops/operations.cpp.
EJK_API std::span<const Operation* const> builtin_operations();

/// An operation and its kernels, highest priority first. Immutable: `add` publishes a new one.
struct RegisteredOperation {
  const Operation* declaration = nullptr;
  std::vector<std::shared_ptr<const KernelInfo>> kernels = {};
};

/// The operation's kernel of that name; null when it has none.
EJK_API const KernelInfo* find_kernel(const RegisteredOperation& operation, std::string_view name);

/// The declared fields as text, one line per field: "input query: number[batch, ...]". A kernel registered from outside
/// brings those that it was compiled for, and `validate_signatures` names the first line that differs
/// (InvalidArgument).
EJK_API std::vector<std::string> signature_of(std::span<const TensorField> inputs, std::span<const ParamField> params,
                                              std::span<const TensorField> outputs, const ParamsBlock& defaults);
EJK_API std::vector<std::string> signature_of(const Operation& operation);
template <class Op>
std::vector<std::string> signature_of() {
  return signature_of(operation_detail::kInputs<Op>, operation_detail::kParams<Op>, operation_detail::kOutputs<Op>,
                      ParamsBlock::of(typename Op::Params{}));
}
EJK_API void validate_signatures(const Operation& operation, const KernelInfo& kernel);

/// Built-in kernels keep the order of their list and stand 100 apart, the last (the reference) at 0. Added kernels take
/// the priority they ask for: above a built-in to be tried before it, below 0 never. Thread-safe; lookups take no lock
/// that a registration holds for long.
class EJK_API KernelRegistry {
 public:
  static constexpr int kStep = 100;

  /// The process's registry; the first call loads the plug-ins of EJKERNEL_PLUGINS (plugins.h).
  static KernelRegistry& instance();

  /// Adds a kernel to an operation. InvalidArgument when the operation is unknown, the name is taken, a function is
  /// missing, or the kernel's own signature differs from the declaration.
  void add(std::string_view operation, KernelInfo kernel, int priority);
  template <class Op, class K>
  void add(int priority) {
    KernelInfo kernel = make_kernel<Op, K>();
    kernel.signature = signature_of<Op>();
    add(Op::kName, std::move(kernel), priority);
  }

  /// Adds an operation with its kernels. The declaration must outlive the process's use of it.
  void add_operation(const Operation& declaration);
  template <class Op>
  void add_operation() {
    add_operation(operation<Op>());
  }

  /// The operation of that name. InvalidArgument lists the known ones.
  std::shared_ptr<const RegisteredOperation> find(std::string_view name) const;
  std::vector<std::string> names() const;

  /// Rises with every registration; caches of choices compare it.
  uint64_t generation() const;

  /// What the calling thread registers during the object's lifetime is taken back at its end, unless kept.
  class EJK_API Batch {
   public:
    explicit Batch(KernelRegistry& registry);
    ~Batch();
    Batch(const Batch&) = delete;
    Batch& operator=(const Batch&) = delete;
    void keep() { kept_ = true; }

   private:
    KernelRegistry& registry_;
    uint64_t outer_;
    bool kept_ = false;
  };

 private:
  KernelRegistry();
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ejk
