// Every path of the CUDA platform's host half, on a driver and a compiler that are not there.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <thread>

#include "ejkernel/core/allocator.h"
#include "ejkernel/core/environment.h"
#include "ejkernel/core/error.h"
#include "ejkernel/core/store.h"
#include "ejkernel/platform/cuda/program.h"
#include "ejkernel/platform/cuda/stream.h"
#include "ejkernel/platform/cuda/tensor_map.h"
#include "ejkernel/runtime/api.h"
#include "ejkernel/runtime/devices.h"
#include "ejkernel/runtime/explain.h"
#include "ejkernel/runtime/problem.h"
#include "ejkernel/runtime/registry.h"
#include "ejkernel/testing/allocation_counter.h"
#include "ejkernel/testing/fake_cuda.h"
#include "ejkernel/testing/operations.h"

namespace ejk::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr Device kGpu = {DeviceKind::cuda, 0};
constexpr Device kOtherGpu = {DeviceKind::cuda, 1};
constexpr int kOutOfMemory = 2, kLaunchFailed = 719;  // codes of the driver

/// y = x, by kernels that exist in name only. `wish` chooses how the fast ones behave.
struct GpuToy {
  static constexpr std::string_view kName = "gpu_toy";
  static constexpr int kRevision = 1;
  static constexpr std::string_view kSummary = "y = x";
  static constexpr std::string_view kSource = "none";
  struct Inputs {
    Tensor x = {};
  };
  struct Params {
    int64_t wish = 0;
  };
  template <class T>
  struct Out {
    T y = {};
  };
  using Outputs = Out<Tensor>;
  using Results = Out<Array>;
  static constexpr auto inputs() { return std::array{TensorField{"x", "float[rows, dim]", "what is copied"}}; }
  static constexpr auto outputs() { return std::array{TensorField{"y", "@x[rows, dim]", "the copy"}}; }
  static constexpr auto params() {
    return std::array{param<&Params::wish>("wish", Key::value, "what goes wrong", at_least(0))};
  }
  static Work work(const Call<GpuToy>&) { return {}; }
  static std::span<const KernelInfo* const> kernels();
};
enum Wish : int64_t { kFine, kBroken, kSpills, kSerialises, kTooMuchShared };

constexpr std::string_view kFile = "ejkernel/platform/cuda/device/empty.cu";

struct GpuToyFast {
  static constexpr std::string_view kName = "cuda";
  static constexpr Platform kPlatform = Platform::cuda;
  struct Config {
    int threads = 128;
    static constexpr auto fields() {
      return std::array{config_field<&Config::threads, 64, 128, 2048>("threads", "of a block")};
    }
  };
  static Config heuristic(const Call<GpuToy>&, const DeviceProperties&) { return {}; }
  static std::vector<Config> candidates(const Call<GpuToy>&, const DeviceProperties&) { return {{64}, {128}}; }
  static size_t workspace_bytes(const Call<GpuToy>&, const Config&, const DeviceProperties&) { return 64; }
  static std::shared_ptr<const void> prepare(const Call<GpuToy>& call, const Config& config,
                                             const DeviceProperties& device) {
    const char* wishes[] = {"copy", "broken", "spills", "serialises", "copy"};
    return cuda::load_program(
        {.file = kFile,
         .instance = std::string("ejk::") + wishes[call.params.wish] + "<" + std::to_string(config.threads) + ">",
         .shared_bytes = call.params.wish == kTooMuchShared ? 232448 : 100000},
        device);
  }
  static void run(const Call<GpuToy>& call, const Config& config, const RunContext& context) {
    cuda::launch(context, {.x = static_cast<unsigned>(call.inputs.x.shape[0])},
                 {.x = static_cast<unsigned>(config.threads)}, call.inputs.x.data, call.outputs.y.data);
  }
};

struct GpuToyFallback {
  static constexpr std::string_view kName = "cuda_reference";
  static constexpr Platform kPlatform = Platform::cuda;
  static std::shared_ptr<const void> prepare(const Call<GpuToy>&, const DeviceProperties& device) {
    return cuda::load_program({.file = kFile, .instance = "ejk::reference_spills", .may_spill = true}, device);
  }
  static void run(const Call<GpuToy>&, const RunContext& context) { cuda::launch(context, {}, {.x = 32}); }
};

struct GpuToyReference {
  static constexpr std::string_view kName = "reference";
  static constexpr Platform kPlatform = Platform::reference;
  static void run(const Call<GpuToy>& call, const RunContext&) {
    for (int64_t i = 0; i < call.inputs.x.num_elements(); ++i) set(call.outputs.y, i, get(call.inputs.x, i));
  }
};

std::span<const KernelInfo* const> GpuToy::kernels() {
  static const KernelInfo fast = make_kernel<GpuToy, GpuToyFast>(), fallback = make_kernel<GpuToy, GpuToyFallback>(),
                          reference = make_kernel<GpuToy, GpuToyReference>();
  static const KernelInfo* const list[] = {&fast, &fallback, &reference};
  return list;
}

class Cuda : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    static const bool done = (KernelRegistry::instance().add_operation<GpuToy>(), true);
    (void)done;
  }

  static PlanFor<GpuToy> toy_plan(int64_t wish = kFine, Device device = kGpu, const PlanOptions& options = {}) {
    return plan<GpuToy>({.x = Tensor(nullptr, DType::f32, {3, 4}, device)}, {.wish = wish}, options);
  }

  FakeCuda fake{2};
};

// ---- devices and memory ----

TEST_F(Cuda, devices_are_described) {
  EXPECT_EQ(num_cuda_devices(), 2);
  const DeviceProperties& gpu = device_properties(kGpu);
  EXPECT_EQ(gpu.architecture, "sm_90");
  EXPECT_EQ(gpu.compute_capability, 90);
  EXPECT_EQ(gpu.num_units, 132);
  EXPECT_EQ(gpu.shared_bytes_per_block, 232448);
  EXPECT_EQ(gpu.cache_bytes, 50 << 20);
  EXPECT_THAT(device_fingerprint(kGpu), AllOf(HasSubstr("cuda|Fake GPU"), HasSubstr("|sm_90|132")));
  EXPECT_EQ(device_fingerprint(kGpu), device_fingerprint(kOtherGpu)) << "devices that are alike share records";
  EXPECT_THAT(
      [] {
        device_properties({DeviceKind::cuda, 2});
      },
      ThrowsMessage<Unsupported>(AllOf(HasSubstr("cuda:2"), HasSubstr("2 CUDA devices"))));
}

TEST_F(Cuda, a_driver_that_cannot_start_is_no_device) {
  fake.fail_call(1, 100);
  fake.restart();
  EXPECT_EQ(num_cuda_devices(), 0);
  EXPECT_THAT(cuda::driver_report().error, HasSubstr("cuInit: CUDA_ERROR_OF_THE_FAKE"));
  EXPECT_THROW(cuda::driver(), Unsupported);
  EXPECT_THROW(Array(DType::f32, {4}, kGpu), Unsupported);
}

TEST_F(Cuda, tensors_travel_to_a_device_and_back) {
  const Array host = Array::zeros(DType::f32, {2, 3});
  for (int i = 0; i < 6; ++i) set(host, i, i + 1);
  const Tensor transposed(host.data(), DType::f32, {3, 2}, {1, 3});
  {
    const Array there = to_device(transposed, kOtherGpu);
    EXPECT_EQ(there.view().device, kOtherGpu);
    const Array back = to_host(there);
    for (int i = 0; i < 6; ++i) EXPECT_EQ(get(back, i), get(transposed, i));
    // A strided view of device memory: its last column, from the end.
    const Tensor column(there.as<float>() + 5, DType::f32, {3}, Shape{-2}, kOtherGpu);
    const Array values = to_host(column);
    for (int i = 0; i < 3; ++i) EXPECT_EQ(get(values, i), get(transposed, 5 - 2 * i));
    EXPECT_EQ(fake.num_blocks(), 1u);
  }
  EXPECT_EQ(fake.num_blocks(), 0u) << "the array's memory is freed";
  EXPECT_EQ(get(to_host(Array::zeros(DType::f64, {2}, kGpu)), 1), 0);
  EXPECT_EQ(to_device(Tensor(nullptr, DType::f32, {0, 2}), kGpu).shape(), (Shape{0, 2}));
  EXPECT_FALSE(to_device(Tensor(), kGpu).present());
}

TEST_F(Cuda, memory_that_is_not_there_is_a_typed_error) {
  fake.set_out_of_memory(true);
  try {
    Array(DType::f32, {1000}, kGpu);
    FAIL();
  } catch (const Internal& error) {
    EXPECT_EQ(error.code(), ErrorCode::out_of_memory);
    EXPECT_THAT(error.what(), AllOf(HasSubstr("4000 bytes on cuda:0"), HasSubstr("1048576 of its 137438953472")));
  }
}

// ---- contexts ----

TEST_F(Cuda, a_caller_without_a_context_gets_none_back) {
  toy_plan();
  EXPECT_EQ(fake.num_contexts(), 0u);
}

TEST_F(Cuda, a_caller_keeps_its_own_context) {
  const cuda::CurrentDevice own(kOtherGpu);
  EXPECT_EQ(fake.num_contexts(), 1u);
  const int64_t pushes = fake.calls("cuCtxPushCurrent");
  const Array there = to_device(Array::zeros(DType::f32, {4}), kOtherGpu);
  EXPECT_EQ(fake.calls("cuCtxPushCurrent"), pushes) << "the right context is current already";
  const Array elsewhere = to_device(Array::zeros(DType::f32, {4}), kGpu);
  EXPECT_GT(fake.calls("cuCtxPushCurrent"), pushes);
  EXPECT_EQ(fake.num_contexts(), 1u);
  EXPECT_EQ(fake.calls("cuDevicePrimaryCtxRetain"), 2);
}

TEST_F(Cuda, each_of_two_devices_that_are_alike_loads_its_code) {
  for (const Device device : {kGpu, kOtherGpu, kGpu}) {
    const Array x = to_device(Array::zeros(DType::f32, {3, 4}), device), y(DType::f32, {3, 4}, device);
    const Array workspace(DType::u8, {64}, device);
    toy_plan(kFine, device).run({.x = x}, {.y = y}, {.workspace = {workspace.as<std::byte>(), 64}});
  }
  ASSERT_EQ(fake.launches().size(), 3u);
  EXPECT_EQ(fake.launches()[0].device, 0);
  EXPECT_EQ(fake.launches()[1].device, 1);
  EXPECT_EQ(fake.launches()[2].device, 0);
  EXPECT_EQ(fake.compilations(), 1) << "compiled once";
  EXPECT_EQ(fake.calls("cuModuleLoadData"), 2) << "loaded once for each";
}

// ---- launches ----

TEST_F(Cuda, a_call_launches_what_was_planned) {
  const cuda::Stream stream(kGpu);
  const Array x = to_device(Array::zeros(DType::f32, {3, 4}), kGpu);
  const auto result = execute<GpuToy>({.x = x}, {}, {.stream = stream});
  EXPECT_EQ(result.y.view().device, kGpu);
  ASSERT_EQ(fake.launches().size(), 1u);
  const FakeCuda::Launch& launch = fake.launches()[0];
  EXPECT_EQ(launch.instance, "ejk::copy<128>");
  EXPECT_THAT(launch.grid, ElementsAre(3u, 1u, 1u));
  EXPECT_THAT(launch.block, ElementsAre(128u, 1u, 1u));
  EXPECT_EQ(launch.shared_bytes, 100000u);
  EXPECT_EQ(launch.stream, stream.handle());
}

TEST_F(Cuda, small_outputs_share_a_block) {
  const Operation& op = *KernelRegistry::instance().find("flash_attention")->declaration;
  const auto outputs_of = [&](int64_t batch) {
    const Tensor x(nullptr, DType::bf16, {batch, 16, 1, 64}, kGpu);
    std::vector<Tensor> inputs(op.inputs.size());
    inputs[0] = inputs[1] = inputs[2] = x;
    return Plan::make(op.name, inputs, op.default_params).allocate_outputs();
  };
  const int64_t before = fake.calls("cuMemAllocFromPoolAsync");
  {
    const std::vector<Array> small = outputs_of(1);
    EXPECT_EQ(fake.calls("cuMemAllocFromPoolAsync") - before, 1);
    EXPECT_EQ(small[1].as<std::byte>() - small[0].as<std::byte>(), 16 * 64 * 2);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(small[1].data()) % 256, 0u);
    EXPECT_EQ(fake.num_blocks(), 1u);
  }
  EXPECT_EQ(fake.num_blocks(), 0u);
  const std::vector<Array> large = outputs_of(32);  // 64 KiB and more
  EXPECT_EQ(fake.calls("cuMemAllocFromPoolAsync") - before, 3);
}

TEST_F(Cuda, run_does_nothing_but_launch) {
  const auto plan = toy_plan();
  const Array x = to_device(Array::zeros(DType::f32, {3, 4}), kGpu), y(DType::f32, {3, 4}, kGpu);
  const Array workspace(DType::u8, {64}, kGpu);
  const cuda::CurrentDevice current(kGpu);
  plan.run({.x = x}, {.y = y}, {.workspace = {workspace.as<std::byte>(), 64}});  // the fake's own records are made
  const int64_t news = num_news();
  const int64_t calls = fake.calls(), launches = fake.calls("cuLaunchKernel"), asked = fake.calls("cuCtxGetCurrent");
  for (int i = 0; i < 10; ++i) plan.run({.x = x}, {.y = y}, {.workspace = {workspace.as<std::byte>(), 64}});
  EXPECT_EQ(num_news() - news, 0) << "host memory was allocated";
  EXPECT_EQ(fake.calls("cuLaunchKernel") - launches, 10);
  EXPECT_EQ(fake.calls("cuCtxGetCurrent") - asked, 10);
  EXPECT_EQ(fake.calls() - calls, 20) << "a call that is neither";
}

TEST_F(Cuda, a_launch_beyond_the_limits_is_the_drivers_error_with_the_kernels_name) {
  const Array x = to_device(Array::zeros(DType::f32, {3, 4}), kGpu);
  PlanOptions options;
  options.config = ConfigValues{{"threads", 2048}};
  EXPECT_THAT([&] { execute<GpuToy>({.x = x}, {}, {.plan = options}); },
              ThrowsMessage<Internal>(HasSubstr("cuLaunchKernel must succeed")));
}

TEST_F(Cuda, a_fault_tells_the_last_calls) {
  const auto plan = toy_plan();
  const Array x = to_device(Array::zeros(DType::f32, {3, 4}), kGpu), y(DType::f32, {3, 4}, kGpu);
  const Array workspace(DType::u8, {64}, kGpu);
  plan.run({.x = x}, {.y = y}, {.workspace = {workspace.as<std::byte>(), 64}});
  const cuda::CurrentDevice current(kGpu);
  fake.fail_call(2, 700);  // behind cuCtxGetCurrent
  EXPECT_THAT([] { synchronize(kGpu); },
              ThrowsMessage<Internal>(AllOf(HasSubstr("cuStreamSynchronize must succeed"), HasSubstr("last calls"),
                                            HasSubstr("cuLaunchKernel("),
                                            HasSubstr(", 3, 1, 1, 128, 1, 1, 100000, 0) "
                                                      "ejk::copy<128>"),
                                            HasSubstr("\n  cuStreamSynchronize(0)"))));
}

TEST_F(Cuda, work_is_captured_and_launched_again) {
  const cuda::Stream stream(kGpu);
  const auto plan = toy_plan();
  const Array x = to_device(Array::zeros(DType::f32, {3, 4}), kGpu), y(DType::f32, {3, 4}, kGpu);
  const Array workspace(DType::u8, {64}, kGpu);
  const cuda::Graph graph(stream, [&] {
    EXPECT_TRUE(cuda::is_capturing(kGpu, stream));
    plan.run({.x = x}, {.y = y}, {.stream = stream, .workspace = {workspace.as<std::byte>(), 64}});
  });
  EXPECT_FALSE(cuda::is_capturing(kGpu, stream));
  graph.launch(stream);
  EXPECT_EQ(fake.calls("cuGraphLaunch"), 1);
  EXPECT_THROW(cuda::Graph(stream, [] { throw Internal("while capturing"); }), Internal);
  EXPECT_FALSE(cuda::is_capturing(kGpu, stream)) << "a failed capture is ended";
  fake.fail_call(3, 906);  // behind the context
  EXPECT_TRUE(cuda::is_capturing(kGpu, nullptr)) << "a stream is that waits for the default one";
}

TEST_F(Cuda, debug_sync_waits_after_each_call_and_not_in_a_capture) {
  setenv("EJKERNEL_DEBUG", "sync", 1);
  environment::reload();
  {
    const cuda::Stream stream(kGpu);
    const auto plan = toy_plan();
    const Array x = to_device(Array::zeros(DType::f32, {3, 4}), kGpu), y(DType::f32, {3, 4}, kGpu);
    const Array workspace(DType::u8, {64}, kGpu);
    const auto run = [&] {
      plan.run({.x = x}, {.y = y}, {.stream = stream, .workspace = {workspace.as<std::byte>(), 64}});
    };
    const int64_t before = fake.calls("cuStreamSynchronize");
    run();
    EXPECT_EQ(fake.calls("cuStreamSynchronize"), before + 1);
    const cuda::Graph graph(stream, run);
    EXPECT_EQ(fake.calls("cuStreamSynchronize"), before + 1);
  }
  unsetenv("EJKERNEL_DEBUG");
  environment::reload();
}

TEST_F(Cuda, events_are_timed) {
  const cuda::Stream stream(kGpu);
  cuda::Event begin(kGpu), end(kGpu);
  begin.record(stream);
  end.record(stream);
  end.hold(stream);
  EXPECT_EQ(cuda::elapsed_ms(begin, end), 1);
}

TEST_F(Cuda, tensor_maps_carry_sizes_strides_and_boxes) {
  alignas(16) static float base[1024];
  const uint64_t sizes[] = {64, 16}, strides[] = {256};
  const uint32_t box[] = {32, 8};
  cuda::make_tensor_map(base, DType::f32, sizes, strides, box, 128);
  ASSERT_EQ(fake.maps().size(), 1u);
  EXPECT_EQ(fake.maps()[0].rank, 2);
  EXPECT_EQ(fake.maps()[0].swizzle, 3);
  EXPECT_THAT(fake.maps()[0].sizes, ElementsAre(64u, 16u, 0u, 0u, 0u));
  EXPECT_THAT(fake.maps()[0].strides, ElementsAre(256u, 0u, 0u, 0u));
  EXPECT_THAT(fake.maps()[0].box, ElementsAre(32u, 8u, 0u, 0u, 0u));
  const uint64_t odd[] = {260};
  EXPECT_THAT([&] { cuda::make_tensor_map(base, DType::f32, sizes, odd, box, 128); },
              ThrowsMessage<Internal>(HasSubstr("strides [260] bytes")));
}

// ---- kernels that cannot be had ----

TEST_F(Cuda, the_next_kernel_takes_a_call_whose_kernel_cannot_be_compiled) {
  for (const int64_t wish : {kBroken, kSpills, kSerialises, kTooMuchShared}) {
    EXPECT_EQ(toy_plan(wish).kernel().name, "cuda_reference") << wish;
    const int64_t compiled = fake.compilations();
    EXPECT_EQ(toy_plan(wish).kernel().name, "cuda_reference");
    EXPECT_EQ(fake.compilations(), compiled) << "the failure is remembered";
  }
  EXPECT_EQ(toy_plan(kFine).kernel().name, "cuda");
}

TEST_F(Cuda, explain_tells_why_a_kernel_could_not_be_had) {
  const auto why = [](int64_t wish) {
    const auto inputs = to_array(GpuToy::Inputs{.x = Tensor(nullptr, DType::f32, {3, 4}, kGpu)});
    return to_text(explain("gpu_toy", inputs, ParamsBlock::of(GpuToy::Params{.wish = wish})));
  };
  EXPECT_THAT(why(kBroken),
              AllOf(HasSubstr("ejk::broken<128> does not compile for sm_90a with NVRTC 13.0"),
                    HasSubstr("identifier \"nonsense\" is undefined"), HasSubstr("result   cuda_reference (cuda)")));
  EXPECT_THAT(why(kSpills), HasSubstr("spills 16 bytes (64 registers)"));
  EXPECT_THAT(why(kSerialises), HasSubstr("(C7510)"));
  EXPECT_THAT(why(kTooMuchShared), HasSubstr("needs 232704 bytes of shared memory"));
  EXPECT_THAT(why(kFine), HasSubstr("result   cuda (cuda), config threads=128"));
}

TEST_F(Cuda, what_the_caller_names_is_never_replaced) {
  PlanOptions named;
  named.kernel = "cuda";
  EXPECT_THAT([&] { toy_plan(kBroken, kGpu, named); }, ThrowsMessage<Unsupported>(HasSubstr("nonsense")));
  PlanOptions configured;
  configured.config = ConfigValues{{"threads", 64}};
  EXPECT_THAT([&] { toy_plan(kBroken, kGpu, configured); }, ThrowsMessage<Unsupported>(HasSubstr("nonsense")));
  EXPECT_THAT([&] { toy_plan(kBroken, kGpu, configured); }, ThrowsMessage<Unsupported>(HasSubstr("nonsense")));
}

TEST_F(Cuda, host_tensors_are_not_for_cuda_kernels) {
  EXPECT_EQ(toy_plan(kFine, Device{}).kernel().name, "reference");
  EXPECT_FALSE(GpuToy::kernels()[0]->supports({}, {}).ok);
}

// ---- compiled kernels in memory and in the store ----

TEST_F(Cuda, a_later_process_finds_compiled_kernels_in_the_store) {
  toy_plan();
  EXPECT_EQ(fake.compilations(), 1);
  toy_plan();
  EXPECT_EQ(fake.compilations(), 1);
  fake.restart();
  EXPECT_EQ(toy_plan().kernel().name, "cuda");
  EXPECT_EQ(fake.compilations(), 1);
  EXPECT_EQ(fake.calls("cuModuleLoadData"), 2);
}

TEST_F(Cuda, a_damaged_record_is_compiled_again) {
  toy_plan();
  for (const auto& entry : std::filesystem::recursive_directory_iterator(store().root()))
    if (entry.is_regular_file()) std::filesystem::resize_file(entry.path(), entry.file_size() - 1);
  fake.restart();
  EXPECT_EQ(toy_plan().kernel().name, "cuda");
  EXPECT_EQ(fake.compilations(), 2);
  fake.restart();
  toy_plan();
  EXPECT_EQ(fake.compilations(), 2) << "the record was made anew";
}

TEST_F(Cuda, no_failure_of_the_store_reaches_a_call) {
  bool failed = true;
  for (int64_t k = 1; failed; ++k) {
    fake.restart();
    use_store(fake.store_root() + "/store" + std::to_string(k));
    fail_store_call(k);
    EXPECT_EQ(toy_plan().kernel().name, "cuda") << "call " << k;
    fake.restart();
    EXPECT_EQ(toy_plan().kernel().name, "cuda") << "call " << k;
    failed = fail_store_call(0) == 0;
    EXPECT_LT(k, 1000);
  }
}

TEST_F(Cuda, threads_that_want_one_kernel_wait_for_one_compilation) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) threads.emplace_back([] { toy_plan(); });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(fake.compilations(), 1);
  EXPECT_EQ(fake.calls("cuModuleLoadData"), 1);
}

TEST_F(Cuda, a_device_that_is_made_up_is_compiled_for_and_not_loaded) {
  const DeviceProperties a100 = cuda::made_up_device("sm_80");
  const cuda::ProgramWatch watch;
  cuda::load_program({.file = kFile, .instance = "ejk::copy<1>"}, a100);
  ASSERT_EQ(watch.programs.size(), 1u);
  EXPECT_EQ(watch.programs[0]->report().registers, 64);
  EXPECT_EQ(fake.calls("cuModuleLoadData"), 0);
  EXPECT_THAT([] { cuda::made_up_device("sm_1"); }, ThrowsMessage<InvalidArgument>(HasSubstr("sm_90a")));
}

// ---- failures everywhere (T-19) ----

TEST_F(Cuda, any_driver_call_may_fail_and_the_next_call_works) {
  const auto whole_call = [] {
    const cuda::Stream stream(kGpu);
    const Array x = to_device(Array::zeros(DType::f32, {3, 4}), kGpu, stream);
    const auto result = execute<GpuToy>({.x = x}, {}, {.stream = stream});
    to_host(result.y, stream);
  };
  for (const int code : {kOutOfMemory, kLaunchFailed}) {
    int64_t num_faults = 0;
    for (int64_t k = 1;; ++k) {
      fake.restart();
      const size_t blocks = fake.num_blocks(), modules = fake.num_modules();
      fake.fail_call(k, code);
      bool threw = false;
      try {
        whole_call();
      } catch (const Error&) {
        threw = true;
      }
      const std::string failed = fake.failed_call();
      fake.fail_call(0);
      EXPECT_EQ(fake.num_contexts(), 0u) << "call " << k;
      num_faults += threw;
      const bool releasing = failed == "cuMemFreeAsync" || failed.rfind("cuCtx", 0) == 0;
      EXPECT_LE(fake.num_blocks(), blocks + (releasing ? 1 : 0)) << "call " << k << ", " << failed;
      if (failed.empty()) break;
      EXPECT_NO_THROW(whole_call()) << "after call " << k;
      EXPECT_EQ(fake.num_modules(), modules + 1) << "after call " << k << ", " << failed;
      ASSERT_LT(k, 1000);
    }
    EXPECT_GT(num_faults, 10);
  }
}

// ---- the library's own kernels ----

/// Every CUDA kernel on every named problem that it serves: it is planned, and its run does nothing but launch.
TEST_F(Cuda, kernels_of_the_library_only_launch) {
  constexpr int64_t kMostElements = 1 << 20;
  const cuda::CurrentDevice current(kGpu);
  int64_t num_runs = 0;
  for (const TestOperation* tests : test_operations())
    for (const Case& c : tests->cases) {
      if ((c.tags & kPrimary) != 0) continue;  // large
      const Problem problem = c.make();
      std::vector<Array> there;
      int64_t elements = 0;
      for (const Tensor& input : problem.views()) {
        elements += input.num_elements();
        there.push_back(elements < kMostElements ? to_device(input, kGpu) : Array());
      }
      if (elements >= kMostElements) continue;
      const std::vector<Tensor> inputs(there.begin(), there.end());
      for (const auto& kernel : KernelRegistry::instance().find(tests->name())->kernels) {
        if (kernel->prepare == nullptr) continue;
        PlanOptions named;
        named.kernel = kernel->name;
        std::optional<Plan> plan;
        try {
          plan = Plan::make(tests->name(), inputs, problem.params, named);
        } catch (const Unsupported&) {
          continue;
        }
        const std::vector<Array> outputs = plan->allocate_outputs();
        const std::vector<Tensor> views(outputs.begin(), outputs.end());
        const Array workspace(DType::u8, {static_cast<int64_t>(plan->workspace_bytes())}, kGpu);
        const RunOptions options{.workspace = {workspace.as<std::byte>(), plan->workspace_bytes()}};
        plan->run(inputs, views, options);  // the fake's own records are made
        const int64_t calls = fake.calls();
        const auto launching = [&] {
          return fake.calls("cuLaunchKernel") + fake.calls("cuCtxGetCurrent") + fake.calls("cuTensorMapEncodeTiled") +
                 fake.calls("cuMemsetD8Async");
        };
        const int64_t allowed = launching(), news = num_news();
        plan->run(inputs, views, options);
        EXPECT_EQ(num_news() - news, 0) << tests->name() << " " << kernel->name << " " << c.name;
        EXPECT_EQ(fake.calls() - calls, launching() - allowed) << tests->name() << " " << kernel->name << " " << c.name;
        ++num_runs;
      }
    }
  EXPECT_GT(num_runs, 400);
}

/// A choice is shared by every call of a problem, and so is its code: two calls with one key ask for the same programs.
TEST_F(Cuda, code_depends_on_the_problem_and_nothing_else) {
  struct First {
    ConfigBlock config;
    std::vector<std::string> instances;
  };
  std::map<std::string, First> by_key;
  int64_t num_shared = 0;
  const DeviceProperties device = cuda::made_up_device("sm_90a");
  const auto check = [&](const TestOperation& tests, const Problem& problem) {
    std::vector<Tensor> inputs = problem.views(), outputs;
    for (Tensor& input : inputs) {
      input.data = nullptr;
      input.device = device.device;
    }
    const CheckedCall checked = check_call(*tests.declaration, inputs, problem.params);
    for (const OutputSpec& spec : checked.outputs)
      outputs.push_back(spec.present ? Tensor(nullptr, spec.dtype, spec.shape, device.device) : Tensor());
    const CallView view = {inputs, &problem.params, outputs};
    for (const auto& kernel : KernelRegistry::instance().find(tests.name())->kernels) {
      if (kernel->prepare == nullptr || !kernel->supports(view, device).ok) continue;
      const std::string key =
          problem_key(*tests.declaration, inputs, problem.params, checked, "a device") + kernel->name;
      const auto known = by_key.find(key);
      const ConfigBlock config = known != by_key.end() ? known->second.config : kernel->heuristic(view, device);
      const cuda::ProgramWatch watch;
      kernel->prepare(view, config, device);
      std::vector<std::string> instances;
      for (const auto& program : watch.programs)
        instances.push_back(program->instance() + " " + std::to_string(program->shared_bytes()));
      if (known == by_key.end()) {
        by_key[key] = {config, instances};
      } else {
        ++num_shared;
        EXPECT_EQ(instances, known->second.instances) << tests.name() << " " << kernel->name << " " << problem.label;
      }
    }
  };
  for (const TestOperation* tests : test_operations()) {
    for (const Case& c : tests->cases)
      if ((c.tags & kPrimary) == 0) check(*tests, c.make());
    for (uint64_t seed = 1; seed <= 300; ++seed) check(*tests, tests->random({.seed = seed, .size = Size::tiny}));
  }
  EXPECT_GT(num_shared, 100);
}

}  // namespace
}  // namespace ejk::testing
