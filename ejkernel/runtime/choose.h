// How a call gets its kernel and its config: the ordered list, then the tiers (runtime §2, §4).
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ejkernel/core/export.h"
#include "ejkernel/core/operation.h"
#include "ejkernel/core/validate.h"
#include "ejkernel/runtime/config.h"
#include "ejkernel/runtime/problem.h"
#include "ejkernel/runtime/registry.h"

namespace ejk {

/// The tiers in their order: the first that answers wins, and is reported.
enum class Tier : int { override_ = 1, overlay, memory, store, autotune, heuristics, error };
EJK_API std::string_view name(Tier tier);

/// Which tiers past memory may answer.
struct Policy {
  bool autotune = true;
  bool heuristics = true;
  friend bool operator==(const Policy&, const Policy&) = default;
};

/// What EJKERNEL_AUTOTUNE_POLICY says: the policy where neither the call nor the thread has one.
EJK_API Policy policy_of_environment();

/// What a caller asks for besides the call itself.
struct PlanOptions {
  std::optional<Platform> platform = {};  ///< a named platform works or raises; never a silent fallback
  std::optional<Backend> backend = {};
  std::string kernel = {};                  ///< a kernel by name, as strict as a platform
  std::optional<ConfigValues> config = {};  ///< tier 1: wins under every policy, is never stored
  std::optional<Policy> policy = {};
  friend bool operator==(const PlanOptions&, const PlanOptions&) = default;
};

/// A kernel and a config for a problem, where the config came from, and the code compiled for them. Immutable and
/// shared.
struct Choice {
  std::shared_ptr<const RegisteredOperation> operation = {};
  std::shared_ptr<const KernelInfo> kernel = {};
  ConfigBlock config = {};
  Tier tier = Tier::error;
  std::shared_ptr<const void> code = {};  ///< what the kernel's `prepare` made; null for one without
  bool is_for_now = false;                ///< somebody is tuning: the next call may get another answer
};

/// What a choice goes by besides the call, its options and the device: while it is equal, so are the choices of equal
/// calls.
struct Circumstances {
  uint64_t generation = 0;  ///< of the registry and the memory tier
  bool autotune = true;
  std::optional<Platform> platform = {};
  friend bool operator==(const Circumstances&, const Circumstances&) = default;
};

/// Those of a call on this thread; none for a call whose choice is for it alone: it names its config, stands under an
/// overlay, or may not use heuristics.
std::optional<Circumstances> circumstances_of(const PlanOptions& options);

/// Asked again of what was chosen before: the machine may change under a process.
bool still_runs_here(const Choice& choice, const DeviceProperties& device);

/// Whether a call on the device with these options asks the kernel at all.
bool may_be_asked(const KernelInfo& kernel, const PlanOptions& options, Device device);

/// The trail of one decision, for `explain`.
struct KernelAnswer {
  std::string kernel;
  Platform platform;
  bool accepted;
  std::string reason;  ///< why it declined or could not be compiled; empty when it accepted
};
struct TierAnswer {
  Tier tier;
  std::string answer;  ///< "hit: block_q=64 …", "miss", "not allowed by policy", "illegal: …"
};
struct Trail {
  std::vector<KernelAnswer> kernels;
  std::vector<TierAnswer> tiers;
};

/// One call as the chooser sees it; the spans outlive the choice being made.
struct ChooseRequest {
  std::shared_ptr<const RegisteredOperation> operation;
  std::span<const Tensor> inputs;
  const ParamsBlock* params = nullptr;
  const CheckedCall* checked = nullptr;
  const PlanOptions* options = nullptr;
  Device device = {};
};

/// Tier 5 tunes within its budgets, on the data of the call at hand or on made-up ones, and not with a trail: then it
/// says what it would do. While a problem is being tuned its other callers get the heuristic's config, and so do calls
/// whose stream is being captured: to measure is to allocate and to wait, which no capture allows.
///
/// Unsupported when no kernel accepts (with every kernel's reason) or no tier answers. A kernel whose code cannot be
/// prepared gives way to the next on the list, for this problem and as long as the process lives, unless the call names
/// its config: then the reason is thrown. `trail` may be null.
EJK_API std::shared_ptr<const Choice> choose(const ChooseRequest& request, Trail* trail);

/// Tier 3. Holds configs found by measurement or set by hand; heuristics and overrides never enter. None: it was
/// measured that nothing beats the heuristic's, so that neither store nor tuner need be asked again.
EJK_API void set_memory_config(const ChooseRequest& request, const KernelInfo& kernel,
                               const std::optional<ConfigBlock>& config);
bool has_memory_config(const ChooseRequest& request, const KernelInfo& kernel);
EJK_API void clear_memory_configs();

/// How often since the process began an overlay's or a cached config was passed over because the kernel cannot run it.
EJK_API int64_t num_illegal_configs();

/// Seconds that tier 5 has spent in this process; it stops answering at EJKERNEL_AUTOTUNE_TOTAL_MS.
EJK_API double seconds_spent_tuning();

/// Tier 2: configs for one operation and kernel on this thread, for the object's lifetime; the innermost wins.
class EJK_API Overlay {
 public:
  Overlay(std::string operation, std::string kernel, ConfigValues values);
  ~Overlay();
  Overlay(const Overlay&) = delete;
  Overlay& operator=(const Overlay&) = delete;
};

/// While it lives, what is planned on this thread runs right away, on `stream` and with these tensors (or with parts of
/// them): tier 5 may measure with their data, and knows what is captured. Without one it makes data up and looks at the
/// default stream, which tells of every stream that waits for it.
class EJK_API CallAtHand {
 public:
  explicit CallAtHand(std::span<const Tensor> inputs, void* stream = nullptr);
  ~CallAtHand();
  CallAtHand(const CallAtHand&) = delete;
  CallAtHand& operator=(const CallAtHand&) = delete;

  std::span<const Tensor> inputs() const { return inputs_; }
  void* stream() const { return stream_; }

 private:
  std::span<const Tensor> inputs_;
  void* stream_;
  const CallAtHand* outer_;
};

/// The policy on this thread for the object's lifetime; a call's own option wins over it.
class EJK_API PolicyOverride {
 public:
  explicit PolicyOverride(Policy policy);
  ~PolicyOverride();
  PolicyOverride(const PolicyOverride&) = delete;
  PolicyOverride& operator=(const PolicyOverride&) = delete;

 private:
  std::optional<Policy> previous_;
};

}  // namespace ejk
