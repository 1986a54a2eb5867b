// T-14 to T-19: what kernels and calls do to memory that is not theirs, and what happens when there is none.
#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <optional>
#include <utility>

#include "ejkernel/core/allocator.h"
#include "ejkernel/core/error.h"
#include "ejkernel/runtime/devices.h"
#include "ejkernel/runtime/executor.h"
#include "ejkernel/testing/check.h"
#include "ejkernel/testing/fake_cuda.h"
#include "ejkernel/testing/operations.h"
#include "tools/table/rows.h"

namespace ejk::testing {
namespace {

const TestOperation& operation_of_trial(int64_t i) {
  const auto all = test_operations();
  return *all[static_cast<size_t>(i) % all.size()];
}

uint64_t seed_of_trial(const RowRequest& request, int64_t i) {
  return request.seed * 1000003 + static_cast<uint64_t>(i);
}

/// The first kernel that supports the problem, guard bands and poison around it.
std::string faults_of(const Problem& problem, const RunSettings& settings) {
  for (const Kernel& kernel : kernels_of(*problem.operation)) {
    const Outcome outcome = run_guarded(problem, kernel, settings);
    if (!outcome.supported) continue;
    if (outcome.faults.empty()) return {};
    return fmt::format("{}: {}; replay: {}", problem.label, outcome.faults.front(), replay_command(problem, *kernel));
  }
  return problem.label + ": no kernel supports it";
}

/// One trial: the first kernel that supports the problem.
void check_first_kernel(const Problem& problem, const Answer& answer, Tally& tally) {
  for (const Kernel& kernel : kernels_of(*problem.operation)) {
    const Verdict verdict = check_kernel(problem, answer, kernel, {.seed = problem.seed});
    if (verdict.supported) return tally.add(problem, kernel, verdict);
  }
  tally.add(problem.label + ": no kernel supports it");
}

}  // namespace

RowResult guard_bands(const RowRequest& request) {
  Tally tally;
  for_each_trial(request.n, tally, [&](int64_t i) {
    const uint64_t seed = seed_of_trial(request, i);
    const Problem problem = operation_of_trial(i).random({.seed = seed, .size = Size::small});
    tally.add(faults_of(problem, {.seed = seed}));
  });
  return tally.result();
}

/// Outputs full of NaN must be written everywhere, and what a freed block held must not matter: the same problem twice,
/// in an order of its own each time, with fresh and freed memory poisoned.
RowResult poisoned_allocator(const RowRequest& request) {
  const AllocationDebug before = allocation_debug();
  set_allocation_debug({.guard = true, .poison = true});
  Tally tally;
  count_trials(request.n, tally, [&](int64_t i) {
    Random random(seed_of_trial(request, i));
    const uint64_t seed = random.bits();
    const TestOperation& tests = operation_of_trial(random.between(0, 1 << 20));
    const Problem problem = tests.random({.seed = seed, .size = Size::small});
    const Answer answer = tests.oracle(problem, 2e6);
    check_first_kernel(problem, answer, tally);
  });
  set_allocation_debug(before);
  return tally.result();
}

namespace {

bool is_misaligned(const Problem& problem) {
  for (const Tensor& t : problem.views()) {
    const auto size = static_cast<uintptr_t>(std::max(1, bits(t.dtype) / 8));
    if (t.present() && t.num_elements() > 0 && reinterpret_cast<uintptr_t>(t.data) % size != 0) return true;
  }
  return false;
}

bool is_refused(const Problem& problem) {
  try {
    execute(problem.operation->name, problem.views(), problem.params);
  } catch (const InvalidArgument&) {
    return true;
  }
  return false;
}

}  // namespace

/// Layouts from 1 to 15 bytes off, padded, negative and zero strides: right, or refused with a typed error. Refusals
/// are a figure and not among the n.
RowResult layouts_and_alignment(const RowRequest& request) {
  Tally tally;
  count_trials(request.n, tally, [&](int64_t i) {
    Random random(seed_of_trial(request, i));
    const TestOperation& tests = operation_of_trial(i);
    const Problem plain = tests.random({.seed = random.bits(), .size = Size::small});
    const Answer answer = tests.oracle(plain, 2e6);
    const Problem problem = relaid(plain, [&](size_t input) {
      const DType dtype = plain.inputs[input].view.dtype;
      // Rows of i4 begin at whole bytes; that others are refused is a test of the operations over caches.
      Layout layout = random_layout(random, dtype, plain.inputs[input].view.rank(), dtype == DType::i4 ? 2 : 1);
      if (random.chance(0.3)) layout.skew = static_cast<size_t>(random.between(1, 15));
      return layout;
    });
    if (!is_misaligned(problem)) return check_first_kernel(problem, answer, tally);
    if (is_refused(problem)) return tally.count("typed_refusals");
    tally.add(problem.label + ": a misaligned tensor was accepted");
  });
  return tally.result();
}

namespace {

/// Zeros with the shape of `like`, its longest axis but the last spread so far apart that the last row begins near
/// element `top`: strides make it cheap, pages are touched where rows are. Tensors without such an axis stay small.
class FarTensor {
 public:
  FarTensor(const Tensor& like, int64_t top) {
    if (!like.present()) return;
    Shape strides = contiguous_strides(like.shape);
    int axis = -1;
    for (int i = 0; i + 1 < like.rank(); ++i)
      if (like.shape[i] > 1 && (axis < 0 || like.shape[i] > like.shape[axis])) axis = i;
    if (axis >= 0 && like.num_elements() > 0) strides[axis] = top / (like.shape[axis] - 1) / 2 * 2;  // i4: whole bytes
    view = Tensor(nullptr, like.dtype, like.shape, strides);
    bytes_ = static_cast<size_t>(num_bytes(like.dtype, {element_range(view)[1]}));
    if (bytes_ == 0) return;
    is_far = axis >= 0;
    view.data = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (view.data == MAP_FAILED)
      throw Internal("T-16: the address space for a far tensor could not be had", ErrorCode::out_of_memory);
  }
  ~FarTensor() {
    if (bytes_ > 0) munmap(view.data, bytes_);
  }
  FarTensor(FarTensor&& other) noexcept
      : view(other.view), is_far(other.is_far), bytes_(std::exchange(other.bytes_, 0)) {}
  FarTensor& operator=(FarTensor&&) = delete;

  Tensor view;
  bool is_far = false;

 private:
  size_t bytes_ = 0;
};

/// The call with every large tensor, inputs and outputs, spread past element `top`, against contiguous copies, bit for
/// bit. Nothing when this kernel declines it.
std::optional<std::string> far_call(const Problem& problem, const Kernel& kernel, int64_t top) {
  const PlanOptions options{.kernel = kernel->name};
  std::vector<Array> near;
  std::vector<Tensor> near_inputs, far_inputs, far_outputs;
  std::vector<FarTensor> far;
  for (const Tensor& input : problem.views()) {
    near_inputs.push_back(near.emplace_back(contiguous(input)));
    far_inputs.push_back(far.emplace_back(near.back(), top).view);
    if (input.present()) copy_elements(near.back(), far_inputs.back());
  }
  if (!supports(problem, kernel).ok) return std::nullopt;
  const std::vector<Array> expected = execute(problem.operation->name, near_inputs, problem.params, {.plan = options});
  const Plan plan = Plan::make(problem.operation->name, far_inputs, problem.params, options);
  for (size_t o = 0; o < expected.size(); ++o) {
    const int input = plan.outputs()[o].aliased_input;
    far_outputs.push_back(input < 0 ? far.emplace_back(expected[o], top).view : far_inputs[static_cast<size_t>(input)]);
  }
  if (std::none_of(far.begin(), far.end(), [](const FarTensor& t) { return t.is_far; })) return std::nullopt;
  run_with_workspace(plan, far_inputs, far_outputs);
  for (size_t o = 0; o < expected.size(); ++o) {
    if (!expected[o].present()) continue;
    const std::string wrong = compare_bits(contiguous(far_outputs[o]), expected[o]);
    if (!wrong.empty())
      return fmt::format("{} {}, {} of {}, far at element {}: {}", problem.operation->name, kernel->name,
                         problem.operation->outputs[o].name, problem.label, top, wrong);
  }
  return "";
}

/// Every call of the CUDA driver fails once, of a driver that is not there: a typed error, nothing left behind but what
/// the driver refused to take back, and the next call right. Returns how many calls failed so.
int64_t device_failures(const RowRequest& request, Tally& tally) {
  constexpr int kOutOfMemory = 2;  // the driver's code
  FakeCuda fake;
  int64_t points = 0;
  for (const TestOperation* tests : test_operations())
    for (uint64_t seed = 0; seed < 8; ++seed) {
      const Problem problem = tests->random({.seed = request.seed + seed, .size = Size::tiny});
      std::vector<Array> there;
      for (const Tensor& input : problem.views()) there.push_back(to_device(input, {DeviceKind::cuda, 0}));
      const std::vector<Tensor> inputs(there.begin(), there.end());
      const auto call = [&] { execute(tests->name(), inputs, problem.params); };
      try {
        call();
      } catch (const Unsupported&) {
        continue;  // it has no kernel for a GPU
      }
      for (int64_t k = 1; k < 10000; ++k, ++points) {
        const size_t blocks = fake.num_blocks(), modules = fake.num_modules();
        fake.fail_call(k, kOutOfMemory);
        std::string wrong;
        bool was_thrown = false;
        try {
          call();
        } catch (const Internal& error) {
          was_thrown = true;
          if (error.code() != ErrorCode::out_of_memory) wrong = error.what();
        }
        const std::string failed = fake.failed_call();
        fake.fail_call(0);
        if (failed.empty()) break;
        if (!was_thrown && failed == "cuLaunchKernel") wrong = "a launch that failed is no error";
        const bool releasing = failed == "cuMemFreeAsync" || failed.starts_with("cuCtx");
        if (fake.num_blocks() > blocks + (releasing ? 1 : 0)) wrong = "a block of device memory leaked";
        if (fake.num_modules() != modules) wrong = "a module leaked";
        if (fake.num_contexts() != 0) wrong = "the caller's context was not given back";
        tally.add(wrong.empty() ? wrong : fmt::format("{}, call {} ({}): {}", problem.label, k, failed, wrong));
      }
    }
  return points;
}

}  // namespace

RowResult indexing_past_32_bits(const RowRequest& request) {
  Tally tally;
  std::map<std::string, int64_t> runs;
  for (uint64_t seed = request.seed; tally.result().n < request.n; ++seed)
    for (const TestOperation* tests : test_operations()) {
      const Problem problem = tests->random({.seed = seed, .size = Size::tiny});
      for (const Kernel& kernel : kernels_of(*tests->declaration))
        for (int64_t top : {(int64_t{1} << 31) - 4096, (int64_t{1} << 31) + 4096, (int64_t{1} << 33)})
          if (const std::optional<std::string> wrong = far_call(problem, kernel, top)) {
            tally.add(*wrong);
            ++runs[std::string(tests->name())];
          }
    }
  for (const TestOperation* tests : test_operations())
    if (runs[std::string(tests->name())] == 0) tally.add(fmt::format("{}: no call of it was far", tests->name()));
  RowResult result = tally.result();
  for (const auto& [operation, count] : runs) result.figures[operation] = static_cast<double>(count);
  return result;
}

/// Whether the failure that was asked for has not come within k allocations: then a further one meets it.
bool is_still_to_come(int64_t k) {
  try {
    for (int64_t n = 0; n < k; ++n) Array(DType::u8, {1});
    return false;
  } catch (const Internal&) {
    return true;
  }
}

bool are_equal(const std::vector<Array>& a, const std::vector<Array>& b) {
  for (size_t o = 0; o < a.size(); ++o)
    if (a[o].present() &&
        std::memcmp(a[o].data(), b[o].data(), static_cast<size_t>(num_bytes(a[o].dtype(), a[o].shape()))) != 0)
      return false;
  return true;
}

/// Every allocation of a public entry point fails once, k = 1, 2, … until the call succeeds: a typed error each time,
/// no block left behind, and the next call right.
RowResult allocation_failures(const RowRequest& request) {
  Tally tally;
  int64_t points = 0;
  auto enumerate = [&](const std::string& what, const std::function<std::vector<Array>()>& call) {
    const std::vector<Array> expected = call();  // also warms: pools and caches may allocate for good
    const int64_t blocks = num_host_blocks();
    for (int64_t k = 1; k < 10000; ++k, ++points) {
      fail_host_allocation(k);
      bool failed = false;
      std::string wrong;
      try {
        call();
      } catch (const Internal& error) {
        failed = true;
        if (error.code() != ErrorCode::out_of_memory) wrong = fmt::format("{}, k = {}: {}", what, k, error.what());
      }
      if (!failed && !is_still_to_come(k)) wrong = fmt::format("{}, k = {}: a failure is no error", what, k);
      fail_host_allocation(0);
      if (num_host_blocks() != blocks)
        wrong = fmt::format("{}, k = {}: {} blocks leaked", what, k, num_host_blocks() - blocks);
      if (!failed && wrong.empty()) break;
      tally.add(wrong);
    }
    if (!are_equal(call(), expected)) tally.add(what + ": the next call gives something else");
  };
  for (const TestOperation* tests : test_operations()) {
    for (uint64_t seed = 0; seed < 24; ++seed) {
      const Problem problem = tests->random({.seed = request.seed + seed, .size = Size::tiny});
      const std::vector<Tensor> inputs = problem.views();
      enumerate(problem.label, [&] { return execute(tests->name(), inputs, problem.params); });
      enumerate("plan " + problem.label, [&] {
        Plan::make(tests->name(), inputs, problem.params).allocate_outputs();
        return std::vector<Array>();
      });
    }
  }
  const int64_t device_points = device_failures(request, tally);
  RowResult result = tally.result();
  result.figures["fault_points"] = static_cast<double>(points + device_points);
  result.figures["device_fault_points"] = static_cast<double>(device_points);
  return result;
}

}  // namespace ejk::testing
