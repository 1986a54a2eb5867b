// Every operation and every kernel the process knows, in order.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ejkernel/core/export.h"
#include "ejkernel/core/operation.h"

namespace ejk {

/// The operations that the library ships; their list stands in ops/operations.cpp.
std::span<const Operation* const> builtin_operations();

/// An operation and its kernels, highest priority first. Immutable: `add` publishes a new one.
struct RegisteredOperation {
  const Operation* declaration = nullptr;
  std::vector<std::shared_ptr<const KernelInfo>> kernels = {};
};

/// Built-in kernels keep the order of their list and stand 100 apart, the last (the reference) at 0. Added kernels take
/// the priority they ask for: above a built-in to be tried before it, below 0 never. Thread-safe; lookups take no lock
/// that a registration holds for long.
class EJK_API KernelRegistry {
 public:
  static constexpr int kStep = 100;

  static KernelRegistry& instance();

  /// Adds a kernel to an operation. InvalidArgument when the operation is unknown, the name is taken, a function is
  /// missing, or the kernel's own signature differs from the declaration.
  void add(std::string_view operation, KernelInfo kernel, int priority);
  template <class Op, class K>
  void add(int priority) {
    add(Op::kName, make_kernel<Op, K>(), priority);
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

 private:
  KernelRegistry();
  struct State;
  std::unique_ptr<State> state_;
};

/// "float[…] query, …": the declared fields as text, one line per field. A kernel registered from outside states its
/// own, and `validate_signatures` names the first line that differs (InvalidArgument).
EJK_API std::vector<std::string> signature_of(const Operation& operation);
EJK_API void validate_signatures(const Operation& operation, const KernelInfo& kernel);

}  // namespace ejk
