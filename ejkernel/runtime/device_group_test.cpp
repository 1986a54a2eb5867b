// Groups of devices, on the host and on two kinds of GPUs that are not there: 0 and 1 are alike, 2 is another.
#include "ejkernel/runtime/device_group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "ejkernel/core/error.h"
#include "ejkernel/ops/operations.h"
#include "ejkernel/platform/cuda/program.h"
#include "ejkernel/runtime/batch.h"
#include "ejkernel/runtime/devices.h"
#include "ejkernel/testing/fake_cuda.h"
#include "ejkernel/testing/relation.h"
#include "ejkernel/testing/toy.h"
#include "ejkernel/testing/values.h"

namespace ejk::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr Device kHost = {}, kGpu = {DeviceKind::cuda, 0}, kTwin = {DeviceKind::cuda, 1},
                 kOther = {DeviceKind::cuda, 2};

/// y = 2 x, by a kernel that exists in name only, and by the reference.
struct GroupToy {
  static constexpr std::string_view kName = "group_toy";
  static constexpr int kRevision = 1;
  static constexpr std::string_view kSummary = "y = 2 x";
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
  static constexpr auto inputs() { return std::array{TensorField{"x", "float[batch, dim]", "what is doubled"}}; }
  static constexpr auto outputs() { return std::array{TensorField{"y", "@x[batch, dim]", "the double"}}; }
  static constexpr auto params() {
    return std::array{param<&Params::wish>("wish", Key::value, "1: it does not compile")};
  }
  static Work work(const Call<GroupToy>&) { return {}; }
  static std::span<const KernelInfo* const> kernels();
};

struct GroupToyCuda {
  static constexpr std::string_view kName = "cuda";
  static constexpr Platform kPlatform = Platform::cuda;
  struct Config {
    int threads = 128;
    static constexpr auto fields() {
      return std::array{config_field<&Config::threads, 64, 128>("threads", "a block's")};
    }
  };
  static inline int choices = 0;
  static inline std::vector<Device> prepared = {};

  static Config heuristic(const Call<GroupToy>&, const DeviceProperties&) { return ++choices, Config(); }
  static std::vector<Config> candidates(const Call<GroupToy>&, const DeviceProperties&) { return {{64}, {128}}; }
  static size_t workspace_bytes(const Call<GroupToy>&, const Config&, const DeviceProperties&) { return 64; }
  static std::shared_ptr<const void> prepare(const Call<GroupToy>& call, const Config&,
                                             const DeviceProperties& device) {
    prepared.push_back(device.device);
    return cuda::load_program({.file = "ejkernel/platform/cuda/device/empty.cu",
                               .instance = call.params.wish == 1 ? "ejk::broken" : "ejk::twice"},
                              device);
  }
  static void run(const Call<GroupToy>& call, const Config& config, const RunContext& context) {
    cuda::launch(context, {.x = static_cast<unsigned>(call.inputs.x.shape[0])},
                 {.x = static_cast<unsigned>(config.threads)});
  }
};

struct GroupToyReference {
  static constexpr std::string_view kName = "reference";
  static constexpr Platform kPlatform = Platform::reference;
  static inline size_t launches_before = 0;
  static inline const FakeCuda* fake = nullptr;
  static void run(const Call<GroupToy>& call, const RunContext& context) {
    if (fake != nullptr) launches_before = fake->launches().size();
    if (context.status != nullptr) *context.status |= status::kLength;
    toy_scale(call.inputs.x, call.outputs.y, 2, 0);
  }
};

std::span<const KernelInfo* const> GroupToy::kernels() {
  static const KernelInfo fast = make_kernel<GroupToy, GroupToyCuda>(),
                          reference = make_kernel<GroupToy, GroupToyReference>();
  static const KernelInfo* const list[] = {&fast, &reference};
  return list;
}

class Group : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    static const bool done = (KernelRegistry::instance().add_operation<GroupToy>(), true);
    (void)done;
  }
  Group() {
    GroupToyCuda::choices = 0;
    GroupToyCuda::prepared.clear();
    GroupToyReference::fake = &fake;
  }
  ~Group() override { GroupToyReference::fake = nullptr; }

  static std::vector<GroupToy::Inputs> inputs_of(const std::vector<Array>& shards) {
    std::vector<GroupToy::Inputs> inputs;
    for (const Array& shard : shards) inputs.push_back({.x = shard});
    return inputs;
  }
  std::vector<int> launched_devices() const {
    std::vector<int> devices;
    for (const FakeCuda::Launch& launch : fake.launches()) devices.push_back(launch.device);
    return devices;
  }

  FakeCuda fake{3};
};

// ---- one choice for devices that are alike ----

TEST_F(Group, chooses_once_for_devices_that_are_alike_and_loads_code_on_each) {
  const DeviceGroup group({kGpu, kTwin});
  const auto shards = group.shard(counting({4, 3}));
  const auto results = pmap_with_config<GroupToy>(group, inputs_of(shards));
  EXPECT_EQ(GroupToyCuda::choices, 1);
  EXPECT_THAT(GroupToyCuda::prepared, ElementsAre(kGpu, kTwin));
  EXPECT_EQ(fake.compilations(), 1);
  EXPECT_EQ(fake.calls("cuModuleLoadData"), 2);
  EXPECT_EQ(results[0].y.view().device, kGpu);
  EXPECT_EQ(results[1].y.view().device, kTwin);
  EXPECT_EQ(results[1].y.shape(), (Shape{2, 3}));
}

TEST_F(Group, launches_each_device_on_its_own_stream_and_waits_for_none) {
  const DeviceGroup group({kGpu, kTwin, kOther});
  const auto shards = group.shard(counting({6, 3}));
  const int64_t waits = fake.calls("cuStreamSynchronize");
  const auto results = pmap_with_config<GroupToy>(group, inputs_of(shards));
  EXPECT_EQ(fake.calls("cuStreamSynchronize"), waits);
  EXPECT_THAT(launched_devices(), ElementsAre(0, 1, 2));
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(fake.launches()[i].stream, group.stream(i));
  EXPECT_NE(group.stream(0), group.stream(1));
  group.synchronize();
  EXPECT_EQ(fake.calls("cuStreamSynchronize"), waits + 3);
  pmap_with_config<GroupToy>(group, inputs_of(shards), {}, {.wait = true});
  EXPECT_EQ(fake.calls("cuStreamSynchronize"), waits + 6);
}

TEST_F(Group, chooses_again_for_another_kind_of_device_and_for_another_shape) {
  const DeviceGroup group({kGpu, kOther, kTwin});
  const auto shards = group.shard(counting({6, 3}));
  pmap_with_config<GroupToy>(group, inputs_of(shards));
  EXPECT_EQ(GroupToyCuda::choices, 2);
  auto inputs = inputs_of(shards);
  const Array longer = to_device(counting({40, 3}), kTwin, group.stream(2));
  inputs[2] = {.x = longer};
  clear_memory_configs();
  GroupToyCuda::choices = 0;
  const auto results = pmap_with_config<GroupToy>(group, inputs);
  EXPECT_EQ(GroupToyCuda::choices, 3);
  EXPECT_EQ(results[2].y.shape(), (Shape{40, 3}));
  group.synchronize();
}

TEST_F(Group, hands_options_to_every_device) {
  const DeviceGroup group({kGpu, kTwin});
  GroupOptions options;
  options.plan.config = ConfigValues{{"threads", 64}};
  pmap_with_config<GroupToy>(group, inputs_of(group.shard(counting({4, 3}))), {}, options);
  for (const FakeCuda::Launch& launch : fake.launches()) EXPECT_EQ(launch.block[0], 64u);
  EXPECT_EQ(fake.launches().size(), 2u);
}

// ---- the host ----

TEST_F(Group, of_the_host_computes_each_part) {
  const DeviceGroup group({kHost, kHost});
  const Array x = counting({4, 3});
  std::vector<uint32_t> words(2);
  const auto results =
      pmap_with_config<GroupToy>(group, inputs_of(group.shard(x)), {}, {.status = {nullptr, &words[1]}});
  for (int64_t n = 0; n < 12; ++n) EXPECT_EQ(get(results[static_cast<size_t>(n / 6)].y, n % 6), 2 * get(x, n));
  EXPECT_THAT(words, ElementsAre(0u, status::kLength));
  EXPECT_EQ(group.stream(0), nullptr);
  group.synchronize();
}

TEST_F(Group, launches_gpus_before_the_host_works) {
  const DeviceGroup group({kHost, kGpu});
  const auto results = pmap_with_config<GroupToy>(group, inputs_of(group.shard(counting({4, 3}))));
  EXPECT_EQ(GroupToyReference::launches_before, 1u);
  EXPECT_EQ(get(results[0].y, 0), 2) << "results stand in the group's order";
}

TEST_F(Group, equals_a_call_on_each_device_alone) {
  const DeviceGroup group({kHost, kHost});
  const Array x = counting({4, 6, 5});
  const auto shards = group.shard(x);
  const auto results = pmap_with_config<MeanPooling>(group, {{.x = shards[0]}, {.x = shards[1]}});
  for (size_t i = 0; i < 2; ++i) EXPECT_EQ(compare_bits(results[i].out, mean_pooling({.x = shards[i]}).out), "");
}

// ---- tensors ----

TEST_F(Group, shards_and_replicates_host_tensors) {
  const DeviceGroup group({kGpu, kHost});
  const Array x = counting({2, 4});
  const auto rows = group.shard(x), columns = group.shard(x, -1), all = group.replicate(x);
  EXPECT_EQ(rows[0].view().device, kGpu);
  EXPECT_EQ(rows[1].view().device, kHost);
  EXPECT_THAT(values_of(to_host(rows[0])), ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(values_of(to_host(rows[1])), ElementsAre(5, 6, 7, 8));
  EXPECT_THAT(values_of(to_host(columns[0])), ElementsAre(1, 2, 5, 6));
  EXPECT_THAT(values_of(to_host(columns[1])), ElementsAre(3, 4, 7, 8));
  EXPECT_EQ(values_of(to_host(all[0])), values_of(x));
  EXPECT_FALSE(group.shard(Tensor())[1].present());
  EXPECT_FALSE(group.replicate(Tensor())[1].present());
  EXPECT_EQ(group.shard(Tensor(nullptr, DType::f32, {4, 0}))[1].shape(), (Shape{2, 0}));
}

TEST_F(Group, refuses_to_shard_what_has_no_equal_parts) {
  const DeviceGroup group({kGpu, kHost});
  EXPECT_EQ(refusal_of([&] {
              group.shard(counting({3, 4}));
            }),
            "DeviceGroup: axis 0 of the tensor must be a multiple of the 2 devices, got 3 (f32[3, 4]); pad it, or give "
            "each device tensors of its own");
  EXPECT_EQ(refusal_of([&] {
              group.shard(counting({2, 4}), 2);
            }),
            "DeviceGroup: the axis of the shards must be -2 to 1, got 2 for f32[2, 4]; name an axis of the tensor");
  EXPECT_THAT(refusal_of([&] { group.shard(counting({})); }), HasSubstr("must belong to a tensor with axes"));
  EXPECT_THAT(refusal_of([&] { group.shard(Array(DType::i4, {2, 3})); }), HasSubstr("must begin at whole bytes"));
  const Array there = to_device(counting({2, 4}), kGpu);
  EXPECT_THAT([&] { group.replicate(there); },
              ThrowsMessage<Unsupported>(HasSubstr("device 0 of the group, cuda:0: contiguous")));
}

TEST_F(Group, results_outlive_the_group) {
  std::vector<GroupToy::Results> results;
  std::vector<Array> shards;
  {
    const DeviceGroup group({kGpu, kTwin});
    shards = group.shard(counting({4, 3}));
    results = pmap_with_config<GroupToy>(group, inputs_of(shards));
  }
  EXPECT_EQ(fake.calls("cuStreamDestroy"), 0);
  shards.clear();
  results.pop_back();
  EXPECT_EQ(fake.calls("cuStreamDestroy"), 0);
  results.clear();
  EXPECT_EQ(fake.calls("cuStreamDestroy"), 2);
  EXPECT_EQ(fake.num_blocks(), 0u);
}

// ---- wrong calls and failures ----

TEST_F(Group, refuses_what_does_not_fit_the_group) {
  const DeviceGroup group({kGpu, kTwin});
  const auto shards = group.shard(counting({4, 3}));
  EXPECT_EQ(refusal_of([] { DeviceGroup({}); }),
            "DeviceGroup: the devices must be at least one, got none; name them, as in {{DeviceKind::cuda, 0}}");
  EXPECT_THAT([] { DeviceGroup({kHost, {DeviceKind::cuda, 7}}); }, ThrowsMessage<Unsupported>(HasSubstr("cuda:7")));
  EXPECT_EQ(refusal_of([&] { pmap_with_config<GroupToy>(group, {{.x = shards[0]}}); }),
            "group_toy: the lists of inputs must be 2, one per device of the group, got 1; pass one list per device");
  EXPECT_THAT(refusal_of([&] { pmap_with_config<GroupToy>(group, inputs_of(shards), {}, {.status = {nullptr}}); }),
              HasSubstr("the status words must be 2, one per device of the group, or none, got 1"));
  EXPECT_EQ(
      refusal_of([&] {
        pmap_with_config<GroupToy>(group, {{.x = shards[0]}, {.x = shards[0]}});
      }),
      "device 1 of the group, cuda:1: group_toy: x must be on cuda:1, got cuda:0; give each device tensors of its "
      "own");
  EXPECT_EQ(fake.launches().size(), 0u) << "every device is planned before one runs";
}

TEST_F(Group, errors_name_the_device) {
  const DeviceGroup group({kGpu, kTwin});
  const auto shards = group.shard(counting({4, 3}));
  const Array wrong = to_device(counting({4}), kTwin);
  EXPECT_THAT(refusal_of([&] {
                pmap_with_config<GroupToy>(group, {{.x = shards[0]}, {.x = wrong}});
              }),
              HasSubstr("device 1 of the group, cuda:1: group_toy: x must be [batch, dim], got rank 1 [4]"));
  EXPECT_THAT([&] { pmap_with_config<GroupToy>(group, inputs_of(shards), {.wish = 1}); },
              ThrowsMessage<Unsupported>(AllOf(HasSubstr("device 0 of the group, cuda:0"), HasSubstr("nonsense"))));
  fake.set_out_of_memory(true);
  try {
    pmap_with_config<GroupToy>(group, inputs_of(shards));
    FAIL();
  } catch (const Internal& error) {
    EXPECT_EQ(error.code(), ErrorCode::out_of_memory);
    EXPECT_THAT(error.what(), HasSubstr("device 0 of the group, cuda:0: "));
  }
  fake.set_out_of_memory(false);
  pmap_with_config<GroupToy>(group, inputs_of(shards));
}

TEST_F(Group, plan_serves_a_device_that_is_alike_and_no_other) {
  const auto plan = ejk::plan<GroupToy>({.x = Tensor(nullptr, DType::f32, {2, 3}, kGpu)});
  EXPECT_EQ(plan.on(kGpu).choice().code, plan.choice().code);
  const Plan twin = plan.on(kTwin);
  EXPECT_EQ(twin.device(), kTwin);
  EXPECT_THAT(GroupToyCuda::prepared, ElementsAre(kGpu, kTwin));
  EXPECT_EQ(twin.choice().tier, plan.choice().tier);
  EXPECT_EQ(GroupToyCuda::choices, 1);
  EXPECT_THAT(refusal_of([&] { plan.on(kOther); }), HasSubstr("group_toy: the device must be like cuda:0, got cuda:2"));
  EXPECT_THAT(refusal_of([&] { plan.on(kHost); }), HasSubstr("got cpu"));
}

// ---- batches on a device ----

TEST_F(Group, a_batch_on_a_device_allocates_once_and_launches_per_slice) {
  const Array x = to_device(counting({5, 2, 3}), kGpu);
  const int64_t before = fake.calls("cuMemAllocFromPoolAsync");
  const DeviceGroup group({kGpu});
  const auto [y] = vmap_with_config<GroupToy>({.x = x}, {.in = 0}, {}, {.stream = group.stream(0)});
  EXPECT_EQ(y.view().device, kGpu);
  EXPECT_EQ(fake.calls("cuMemAllocFromPoolAsync") - before, 2) << "the output and the workspace";
  EXPECT_EQ(fake.launches().size(), 5u);
  for (const FakeCuda::Launch& launch : fake.launches()) EXPECT_EQ(launch.stream, group.stream(0));
}

/// TMA has no stride of 0: keys that all slices share must not cost Hopper its kernel.
TEST_F(Group, a_batch_keeps_hoppers_kernel) {
  const auto spec = [](const Shape& shape) { return Tensor(nullptr, DType::bf16, shape, kGpu); };
  const FlashAttention::Inputs mapped{
      .query = spec({4, 1, 64, 2, 64}), .key = spec({4, 1, 64, 2, 64}), .value = spec({4, 1, 64, 2, 64})};
  const FlashAttention::Inputs shared{
      .query = spec({4, 1, 64, 2, 64}), .key = spec({1, 64, 2, 64}), .value = spec({1, 64, 2, 64})};
  const auto folded = plan_batch<FlashAttention>(mapped, {.in = 0});
  EXPECT_TRUE(folded.folding().ok);
  EXPECT_EQ(folded.plan().kernel().name, "cuda_sm90");
  const auto looped = plan_batch<FlashAttention>(shared, {.in = {{"query", 0}}});
  EXPECT_THAT(looped.folding().reason, HasSubstr("kernel cuda_sm90 takes a slice and not the fold"));
  EXPECT_EQ(looped.plan().kernel().name, "cuda_sm90");
}

}  // namespace
}  // namespace ejk::testing
