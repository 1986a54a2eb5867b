// T-45, T-46, T-49: calls that are wrong in every way a caller can be wrong, and index tensors that lie.
#include <fmt/format.h>

#include <array>
#include <regex>

#include "ejkernel/core/environment.h"
#include "ejkernel/core/error.h"
#include "ejkernel/core/validate.h"
#include "ejkernel/runtime/executor.h"
#include "ejkernel/testing/check.h"
#include "ejkernel/testing/operations.h"
#include "tools/table/rows.h"

namespace ejk::testing {
namespace {

/// A valid call made wrong in one or two ways.
class WrongCall {
 public:
  WrongCall(const TestOperation& tests, uint64_t seed)
      : random_(seed), problem_(tests.random({.seed = seed, .size = Size::tiny})) {
    inputs_ = problem_.views();
    for (int64_t i = random_.between(1, 2); i > 0; --i) spoil();
  }

  const std::string& what() const { return what_; }

  /// Plans, and runs where every tensor still has the memory it claims.
  void call() {
    if (!wrong_param_.empty()) set_param(*problem_.operation, problem_.params, wrong_param_, wrong_value_);
    const Plan plan = Plan::make(problem_.operation->name, inputs_, problem_.params, options_);
    if (!may_run_) return;
    std::vector<Array> arrays = plan.allocate_outputs();
    std::vector<Tensor> outputs(arrays.begin(), arrays.end());
    spoil_outputs(outputs);
    if (short_workspace_ && plan.workspace_bytes() > 0)
      plan.run(inputs_, outputs,
               {.workspace = {static_cast<std::byte*>(nullptr), random_.pick<size_t>({0, plan.workspace_bytes()})}});
    else
      run_with_workspace(plan, inputs_, outputs);
  }

 private:
  /// A present input; -1 when all are absent.
  int64_t pick_input() {
    std::vector<int64_t> present;
    for (size_t i = 0; i < inputs_.size(); ++i)
      if (inputs_[i].present()) present.push_back(static_cast<int64_t>(i));
    return present.empty() ? -1 : random_.pick(present);
  }

  void spoil() {
    const int64_t i = pick_input();
    if (i < 0) return;
    Tensor& t = inputs_[static_cast<size_t>(i)];
    const std::string input(problem_.operation->inputs[static_cast<size_t>(i)].name);
    const int axis = t.rank() == 0 ? 0 : static_cast<int>(random_.below(t.rank()));
    switch (random_.below(12)) {
      case 0:
        t.dtype = static_cast<DType>(random_.below(kNumDTypes + 4)), may_run_ = false, note("dtype of " + input);
        break;
      case 1:
        if (t.rank() > 0) t.shape[axis] = random_.pick<int64_t>({-1, INT64_MIN, INT64_MAX, int64_t{1} << 40, 0, 1, 7});
        may_run_ = false, note("extent of " + input);
        break;
      case 2:
        t.shape = {}, t.strides = {}, may_run_ = false, note("rank of " + input);
        break;
      case 3:
        if (t.rank() > 0) t.strides[axis] = random_.pick<int64_t>({2, 3, -1, int64_t{1} << 60, INT64_MAX, INT64_MIN});
        may_run_ = false, note("stride of " + input);
        break;
      case 4:
        t.data = nullptr, note("null " + input);
        break;
      case 5:
        // A pointer to nowhere cannot be told from a good one: null stays null.
        if (t.data != nullptr) t.data = static_cast<std::byte*>(t.data) + 1;
        note("misaligned " + input);
        break;
      case 6:
        t = Tensor(), note("absent " + input);
        break;
      case 7:
        t.device = {DeviceKind::cuda, static_cast<int>(random_.below(3))}, may_run_ = false, note("device of " + input);
        break;
      case 8:
        spoil_param();
        break;
      case 9:
        options_.kernel = random_.pick<std::string>({"cpu ", "nothing", "Reference", "gpu"}), note("kernel");
        break;
      case 10:
        options_.platform = static_cast<Platform>(random_.below(kNumPlatforms + 2)), note("platform");
        break;
      default:
        spoils_output_ = random_.between(0, 5), short_workspace_ = random_.chance(0.3), note("outputs");
        break;
    }
  }

  void spoil_param() {
    const auto params = problem_.operation->params;
    if (params.empty()) return;
    wrong_param_ =
        random_.chance(0.9)
            ? std::string(params[static_cast<size_t>(random_.below(static_cast<int64_t>(params.size())))].name)
            : "no_such_parameter";
    switch (random_.below(6)) {
      case 0:
        wrong_value_ = -1.0;
        break;
      case 1:
        wrong_value_ = std::numeric_limits<double>::quiet_NaN();
        break;
      case 2:
        wrong_value_ = int64_t{INT64_MIN};
        break;
      case 3:
        wrong_value_ = std::string("sideways");
        break;
      case 4:
        wrong_value_ = std::vector<int64_t>{-5, 2, 9};
        break;
      default:
        wrong_value_ = std::numeric_limits<double>::infinity();
        break;
    }
    note("parameter " + wrong_param_);
  }

  void spoil_outputs(std::vector<Tensor>& outputs) {
    Tensor& t = outputs.front();
    if (!t.present() || t.rank() == 0) return;
    switch (spoils_output_) {
      case 0:
        t.dtype = t.dtype == DType::i64 ? DType::f32 : DType::i64;
        break;
      case 1:
        t.shape[0] += 1;
        break;
      case 2:
        t.strides[0] = 0;
        break;
      case 3:
        t.data = nullptr;
        break;
      case 4:
        t.data = static_cast<std::byte*>(t.data) + 1;
        break;
      case 5:
        outputs.pop_back();
        break;
      default:
        break;
    }
  }

  void note(const std::string& text) { what_ += (what_.empty() ? "" : ", ") + text; }

  Random random_;
  Problem problem_;
  std::vector<Tensor> inputs_;
  PlanOptions options_;
  std::string wrong_param_;
  ParamValue wrong_value_;
  std::string what_;
  int64_t spoils_output_ = -1;
  bool short_workspace_ = false;
  bool may_run_ = true;
};

const TestOperation& operation_of_trial(int64_t i) {
  const auto all = test_operations();
  return *all[static_cast<size_t>(i) % all.size()];
}

/// Whether calls of the operation may have an index tensor: in any form, or as a rule (in the first form, not
/// optional).
bool takes_indices(const Operation& operation, bool as_a_rule) {
  for (const TensorField& field : operation.inputs)
    for (const Alternative& alternative : field.contract)
      if (alternative.dtypes == set_of(DType::i32) && !(as_a_rule && (alternative.form > 0 || alternative.optional)))
        return true;
  return false;
}

/// "operation: argument must expected, got given; what to do", or the list of every kernel's reason.
bool is_well_formed(const Error& error) {
  static const std::regex sentence("[a-z0-9_]+: .+ must .+, got .+; .+"),
      reasons("[a-z0-9_]+: no kernel supports this call(\n  [^:]+: .+)+"), device("[a-z]+(:[0-9]+)?: .+; .+");
  const std::string text = error.what();
  return error.code() == ErrorCode::invalid_argument
             ? std::regex_match(text, sentence)
             : std::regex_match(text, reasons) || std::regex_match(text, device);
}

/// Every variable with what most of them refuse.
void malformed_environments(Tally& tally) {
  for (const environment::Variable& variable : environment::variables())
    for (const char* value : {"?", " ", "-1e99", "a b", "\"", "99999999999999999999", "../x"}) {
      try {
        environment::parse([&](const char* name) { return variable.name == name ? value : nullptr; });
      } catch (const Error& error) {
        tally.add(is_well_formed(error) ? "" : error.what());
      }
    }
}

}  // namespace

/// n calls refused with a typed error; anything but that and success is a failure (and a sanitizer ends the process).
/// What turns out right after all, such as an extent that is replaced by itself, is run and counted apart.
RowResult wrong_calls(const RowRequest& request) {
  Tally tally;
  count_trials(request.n, tally, [&](int64_t i) {
    const uint64_t seed = request.seed * 1000003 + static_cast<uint64_t>(i);
    WrongCall wrong(operation_of_trial(i), seed);
    try {
      wrong.call();
      tally.count("right_after_all");
    } catch (const Error& error) {
      const bool typed = error.code() == ErrorCode::invalid_argument || error.code() == ErrorCode::unsupported;
      tally.add(typed ? "" : fmt::format("seed {} ({}): {}", seed, wrong.what(), error.what()));
    } catch (const std::exception& error) {
      tally.add(fmt::format("seed {} ({}): {}", seed, wrong.what(), error.what()));
    }
  });
  return tally.result();
}

RowResult error_quality(const RowRequest& request) {
  Tally tally;
  malformed_environments(tally);
  count_trials(request.n, tally, [&](int64_t i) {
    WrongCall wrong(operation_of_trial(i), request.seed * 1000003 + static_cast<uint64_t>(i));
    try {
      wrong.call();  // some turn out right and give no error to look at
    } catch (const Error& error) {
      tally.add(is_well_formed(error) ? "" : fmt::format("'{}' ({})", error.what(), wrong.what()));
    }
  });
  return tally.result();
}

/// Tables, lengths, offsets, sizes and ids of any value, of the operations that take such; NaN in every page, row and
/// block that none of them may reach: the masked result and status bits that the oracle expects of every kernel, guard
/// bands whole. Every other input is of an operation that takes some as a rule: paged, ragged and grouped ones.
RowResult hostile_indices(const RowRequest& request) {
  std::array<std::vector<const TestOperation*>, 2> indexed;  // that may take some, that do as a rule
  for (const TestOperation* tests : test_operations())
    if (takes_indices(*tests->declaration, /*as_a_rule=*/false))
      indexed[takes_indices(*tests->declaration, /*as_a_rule=*/true)].push_back(tests);
  Tally tally;
  for_each_trial(request.n, tally, [&](int64_t i) {
    const auto& those = indexed[static_cast<size_t>(i) % 2];
    const size_t turn = static_cast<size_t>(i) / 2, round = turn / those.size();
    const TestOperation& tests = *those[turn % those.size()];
    const Problem problem = tests.random({.seed = request.seed * 1000003 + static_cast<uint64_t>(i),
                                          .size = round % 2 == 0 ? Size::small : Size::tiny,
                                          .hostile = true});
    const Answer answer = tests.oracle(problem, 1e6);
    bool supported = false;
    std::string failures;
    for (const Kernel& kernel : kernels_of(*tests.declaration)) {
      const Verdict verdict = check_kernel(problem, answer, kernel, {.seed = problem.seed});
      supported = supported || verdict.supported;
      failures += report(problem, kernel, verdict);
    }
    tally.add(supported ? failures : problem.label + ": no kernel supports it");
    tally.count(std::string(tests.name()));
  });
  return tally.result();
}

}  // namespace ejk::testing
