// T-14 to T-19: what kernels and calls do to memory that is not theirs, and what happens when there is none.
#include <fmt/format.h>
#include <sys/mman.h>

#include <atomic>
#include <functional>

#include "ejkernel/core/allocator.h"
#include "ejkernel/core/error.h"
#include "ejkernel/ejkernel.h"
#include "ejkernel/runtime/executor.h"
#include "ejkernel/testing/check.h"
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
    return fmt::format("{}: {}; replay: {}", problem.label, outcome.faults.front(),
                       replay_command(problem, kernel->name));
  }
  return problem.label + ": no kernel supports it";
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
  for_each_trial(request.n, tally, [&](int64_t i) {
    Random random(seed_of_trial(request, i));
    const uint64_t seed = random.bits();
    const TestOperation& tests = operation_of_trial(random.between(0, 1 << 20));
    const Problem problem = tests.random({.seed = seed, .size = Size::small});
    const Answer answer = tests.oracle(problem, 2e6);
    const Kernel kernel = kernels_of(*tests.declaration).back();
    for (const Kernel& candidate : kernels_of(*tests.declaration)) {
      const Verdict verdict = check_kernel(problem, answer, candidate, {.seed = seed});
      if (!verdict.supported) continue;
      tally.add(report(problem, candidate, verdict));
      return;
    }
    tally.add(problem.label + ": no kernel supports it");
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

/// Layouts from 1 to 15 bytes off, padded, negative and zero strides: right, or refused with a typed error.
RowResult layouts_and_alignment(const RowRequest& request) {
  Tally tally;
  std::atomic<int64_t> refused{0};
  for_each_trial(request.n, tally, [&](int64_t i) {
    Random random(seed_of_trial(request, i));
    const TestOperation& tests = operation_of_trial(i);
    const Problem plain = tests.random({.seed = random.bits(), .size = Size::small});
    const Answer answer = tests.oracle(plain, 2e6);
    const Problem problem = relaid(plain, [&](size_t input) {
      Layout layout = random_layout(random, plain.inputs[input].view.dtype, plain.inputs[input].view.rank());
      if (random.chance(0.3)) layout.skew = static_cast<size_t>(random.between(1, 15));
      return layout;
    });
    if (is_misaligned(problem)) {
      ++refused;
      return tally.add(is_refused(problem) ? "" : problem.label + ": a misaligned tensor was accepted");
    }
    for (const Kernel& kernel : kernels_of(*tests.declaration)) {
      const Verdict verdict = check_kernel(problem, answer, kernel, {.seed = plain.seed});
      if (!verdict.supported) continue;
      return tally.add(report(problem, kernel, verdict));
    }
    tally.add(problem.label + ": no kernel supports it");
  });
  RowResult result = tally.result();
  result.figures["typed_refusals"] = static_cast<double>(refused);
  return result;
}

namespace {

/// A tensor of `rows` heads-rows whose last row lies at element `top`: strides make it cheap, pages are touched where
/// rows are.
struct FarTensor {
  FarTensor(DType dtype, int64_t rows, int64_t row_elements, int64_t top)
      : bytes((static_cast<size_t>(top) + static_cast<size_t>(row_elements)) * static_cast<size_t>(bits(dtype)) / 8) {
    memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
      throw Internal("T-16: the address space for a far tensor could not be had", ErrorCode::out_of_memory);
    view = Tensor(memory, dtype, {1, rows, 1, row_elements}, Shape{0, top / (rows - 1), row_elements, 1});
  }
  ~FarTensor() { munmap(memory, bytes); }
  FarTensor(const FarTensor&) = delete;
  FarTensor& operator=(const FarTensor&) = delete;
  size_t bytes;
  void* memory;
  Tensor view;
};

/// flash_attention and its gradient with every big tensor spread past element `top`, against contiguous copies.
std::string far_attention(int64_t top, const std::string& kernel) {
  constexpr int64_t kRows = 5, kDim = 16;
  FarTensor q(DType::f32, kRows, kDim, top), k(DType::f32, kRows, kDim, top), v(DType::f32, kRows, kDim, top);
  FarTensor out(DType::f32, kRows, kDim, top), dq(DType::f32, kRows, kDim, top), dk(DType::f32, kRows, kDim, top);
  Random random(static_cast<uint64_t>(top));
  for (const Tensor* t : {&q.view, &k.view, &v.view}) fill_normal(*t, random);
  const CallOptions options{.plan = {.kernel = kernel}};
  const Array near_q = contiguous(q.view), near_k = contiguous(k.view), near_v = contiguous(v.view);
  const auto far =
      Plan::make("flash_attention", to_array(FlashAttention::Inputs{.query = q.view, .key = k.view, .value = v.view}),
                 ParamsBlock::of(FlashAttention::Params{.causal = true}), options.plan);
  Array lse(DType::f32, {1, 1, kRows});
  run_with_workspace(far, to_array(FlashAttention::Inputs{.query = q.view, .key = k.view, .value = v.view}),
                     to_array(FlashAttention::Outputs{.out = out.view, .lse = lse}), options);
  const auto near = flash_attention({.query = near_q, .key = near_k, .value = near_v}, {.causal = true}, options);
  if (const std::string wrong = compare_bits(contiguous(out.view), near.out); !wrong.empty()) return "out: " + wrong;

  FlashAttentionBackward::Inputs in{{.query = q.view, .key = k.view, .value = v.view}};
  in.out = out.view, in.lse = lse, in.d_out = v.view;
  const auto far_gradient = Plan::make("flash_attention_backward", to_array(in),
                                       ParamsBlock::of(FlashAttention::Params{.causal = true}), options.plan);
  run_with_workspace(far_gradient, to_array(in),
                     to_array(FlashAttentionBackward::Outputs{.query = dq.view, .key = dk.view}), options);
  FlashAttentionBackward::Inputs near_in{{.query = near_q, .key = near_k, .value = near_v}};
  near_in.out = near.out, near_in.lse = near.lse, near_in.d_out = near_v;
  const auto gradients = execute<FlashAttentionBackward>(near_in, {.causal = true}, options);
  if (const std::string wrong = compare_bits(contiguous(dq.view), gradients.query); !wrong.empty())
    return "d_query: " + wrong;
  if (const std::string wrong = compare_bits(contiguous(dk.view), gradients.key); !wrong.empty())
    return "d_key: " + wrong;
  return {};
}

std::string far_pooling(int64_t top, const std::string& kernel) {
  FarTensor x(DType::f32, 5, 16, top);
  Random random(static_cast<uint64_t>(top));
  fill_normal(x.view, random);
  const Tensor rows(x.memory, DType::f32, {1, 5, 16}, Shape{0, x.view.strides[1], 1});
  const CallOptions options{.plan = {.kernel = kernel}};
  const auto far = mean_pooling({.x = rows}, {}, options);
  const auto near = mean_pooling({.x = contiguous(rows)}, {}, options);
  return compare_bits(far.out, near.out);
}

}  // namespace

RowResult indexing_past_32_bits(const RowRequest& request) {
  Tally tally;
  int64_t round = 0;
  do {
    for (int64_t top : {(int64_t{1} << 31) - 4096 + 4 * round, (int64_t{1} << 31) + 4096 + 4 * round,
                        (int64_t{1} << 33) + 4 * round}) {
      for (const char* kernel : {"cpu", "reference"}) {
        tally.add(far_attention(top, kernel));
        tally.add(far_pooling(top, kernel));
      }
    }
  } while (tally.result().n < request.n && ++round < 100);
  return tally.result();
}

/// Every allocation of a public entry point fails once, k = 1, 2, … until the call succeeds: a typed error each time,
/// no block left behind, and the next call right.
RowResult allocation_failures(const RowRequest& request) {
  Tally tally;
  int64_t points = 0;
  auto enumerate = [&](const std::string& what, const std::function<void()>& call) {
    call();  // warm: pools and caches may allocate for good
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
      fail_host_allocation(0);
      if (num_host_blocks() != blocks)
        wrong = fmt::format("{}, k = {}: {} blocks leaked", what, k, num_host_blocks() - blocks);
      tally.add(wrong);
      if (!failed) return;
    }
  };
  for (const TestOperation* tests : test_operations()) {
    for (uint64_t seed = 0; seed < 24; ++seed) {
      const Problem problem = tests->random({.seed = request.seed + seed, .size = Size::tiny});
      const std::vector<Tensor> inputs = problem.views();
      enumerate(problem.label, [&] { execute(tests->name(), inputs, problem.params); });
      enumerate("plan " + problem.label, [&] { Plan::make(tests->name(), inputs, problem.params).allocate_outputs(); });
    }
  }
  RowResult result = tally.result();
  result.figures["fault_points"] = static_cast<double>(points);
  return result;
}

}  // namespace ejk::testing
