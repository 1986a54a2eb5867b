#include "ejkernel/c_api.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "ejkernel/core/allocator.h"
#include "ejkernel/core/dlpack.h"
#include "ejkernel/core/log.h"
#include "ejkernel/runtime/choose.h"
#include "ejkernel/runtime/recorded.h"
#include "ejkernel/testing/allocation_counter.h"
#include "ejkernel/testing/toy.h"

namespace ejk::testing {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

/// An array and the DLTensor that describes it.
struct Owned {
  explicit Owned(Array of) : array(std::move(of)), view(to_dlpack_view(array, shape.data(), strides.data())) {}
  Owned(const Owned&) = delete;
  Owned(DType dtype, const Shape& extents, double value) : Owned(Array(dtype, extents)) {
    for (int64_t i = 0; i < array.num_elements(); ++i) set(array, i, value);
  }
  double operator[](int64_t i) const { return get(array, i); }

  Array array;
  std::array<int64_t, kMaxRank> shape = {}, strides = {};
  DLTensor view;
};

struct Free {
  void operator()(void* object) const { ejk_free(object); }
};
using Plan = std::unique_ptr<ejk_plan_t, Free>;
using Params = std::unique_ptr<ejk_params_t, Free>;

std::string error() {
  const char* text = nullptr;
  ejk_last_error(&text);
  return text;
}

void expect_refused(int line, ejk_status status, ejk_status expected, const std::string& part) {
  EXPECT_EQ(status, expected) << "line " << line;
  EXPECT_EQ(ejk_last_error(nullptr), expected) << "line " << line;
  EXPECT_THAT(error(), HasSubstr(part)) << "line " << line;
}
// A function's worth of code once: as code in every place, the file took 20 s to compile under sanitizers.
#define EXPECT_REFUSED(call, expected, part) expect_refused(__LINE__, call, expected, part)

Json take(char* text) {
  const std::unique_ptr<char, Free> owner(text);
  return Json::parse(text);
}

/// One toy call: x of 2s, y.
class CApi : public ::testing::Test {
 protected:
  CApi() { register_toys(); }
  ~CApi() override {
    clear_memory_configs();
    ejk_set_log(nullptr, nullptr, EJK_LOG_OFF);
  }

  Plan plan(const ejk_params_t* params = nullptr, const ejk_plan_options* options = nullptr) {
    ejk_plan_t* made = nullptr;
    EXPECT_EQ(ejk_plan("toy", &in, 1, params, options, &made), EJK_OK) << error();
    return Plan(made);
  }
  ejk_status execute(const ejk_params_t* params = nullptr, const ejk_plan_options* options = nullptr) {
    return ejk_execute("toy", &in, 1, &out, 1, params, options, nullptr);
  }
  Params new_params() {
    ejk_params_t* params = nullptr;
    EXPECT_EQ(ejk_params_new("toy", &params), EJK_OK) << error();
    return Params(params);
  }
  ejk_plan_options options() {
    ejk_plan_options options = {};
    options.size = sizeof options;
    return options;
  }

  Owned x{DType::f32, {3, 4}, 2}, y{DType::f32, {3, 4}, 0};
  ejk_tensor in = {"x", &x.view}, out = {"y", &y.view};
};

TEST_F(CApi, version_is_the_librarys_and_the_headers) { EXPECT_STREQ(ejk_version(), EJK_VERSION); }

TEST_F(CApi, operations_are_json) {
  char* text = nullptr;
  ASSERT_EQ(ejk_operations(&text), EJK_OK);
  const Json json = take(text);
  EXPECT_EQ(json["version"], EJK_VERSION);
  std::vector<std::string> names;
  for (const Json& operation : json["operations"]) names.push_back(operation["name"]);
  EXPECT_THAT(names, ::testing::IsSupersetOf({"flash_attention", "flash_attention_backward", "toy"}));
}

TEST_F(CApi, execute_computes_into_the_callers_output) {
  const Params params = new_params();
  ASSERT_EQ(ejk_params_set_f64(params.get(), "scale", 3), EJK_OK);
  ASSERT_EQ(ejk_params_set_i64(params.get(), "shift", 1), EJK_OK);
  ASSERT_EQ(execute(params.get()), EJK_OK) << error();
  EXPECT_EQ(y[0], 7);
  EXPECT_EQ(y[11], 7);
}

TEST_F(CApi, a_plan_runs_with_the_workspace_it_asks_for) {
  const Plan planned = plan();
  char* text = nullptr;
  ASSERT_EQ(ejk_plan_info(planned.get(), &text), EJK_OK);
  const Json info = take(text);
  EXPECT_EQ(info["kernel"], "fast");
  EXPECT_EQ(info["outputs"], Json::parse(R"([{"name": "y", "dtype": "f32", "shape": [3, 4]}])"));
  EXPECT_EQ(info["explain"]["kernels"][0]["reason"], "nothing is good enough");
  const size_t bytes = info["workspace_bytes"];
  ASSERT_EQ(bytes, 16u);

  EXPECT_REFUSED(ejk_plan_run(planned.get(), &in, 1, &out, 1, nullptr), EJK_INVALID_ARGUMENT,
                 "toy: the workspace must have at least 16 bytes, got 0");
  alignas(64) std::byte workspace[16];
  ejk_run_options run = {};
  run.size = sizeof run;
  run.workspace = workspace;
  run.workspace_bytes = sizeof workspace;
  ASSERT_EQ(ejk_plan_run(planned.get(), &in, 1, &out, 1, &run), EJK_OK) << error();
  EXPECT_EQ(y[5], 2);
}

TEST_F(CApi, running_a_plan_does_not_allocate) {
  const Plan planned = plan();
  alignas(64) std::byte workspace[16];
  const ejk_run_options run = {sizeof run, nullptr, workspace, sizeof workspace, nullptr};
  const int64_t before = num_news();
  for (int i = 0; i < 10; ++i) ASSERT_EQ(ejk_plan_run(planned.get(), &in, 1, &out, 1, &run), EJK_OK);
  EXPECT_EQ(num_news(), before);
}

TEST_F(CApi, specs_need_no_data_and_may_go_away) {
  ejk_plan_t* made = nullptr;
  {
    int64_t shape[] = {3, 4};
    std::string name = "x";
    DLTensor spec = x.view;
    spec.data = nullptr;
    spec.strides = nullptr;
    spec.shape = shape;
    const ejk_tensor given = {name.c_str(), &spec};
    ASSERT_EQ(ejk_plan("toy", &given, 1, nullptr, nullptr, &made), EJK_OK) << error();
  }
  const Plan planned(made);
  alignas(64) std::byte workspace[16];
  const ejk_run_options run = {sizeof run, nullptr, workspace, sizeof workspace, nullptr};
  EXPECT_EQ(ejk_plan_run(planned.get(), &in, 1, &out, 1, &run), EJK_OK) << error();
}

TEST_F(CApi, tensors_go_by_name_in_any_order_once_each) {
  const Owned weights(DType::f32, {1, 4}, 1);
  const ejk_tensor both[] = {{"weights", &weights.view}, in};
  EXPECT_EQ(ejk_execute("toy", both, 2, &out, 1, nullptr, nullptr, nullptr), EJK_OK) << error();
  const ejk_tensor twice[] = {in, in};
  EXPECT_REFUSED(ejk_execute("toy", twice, 2, &out, 1, nullptr, nullptr, nullptr), EJK_INVALID_ARGUMENT,
                 "toy: x must be given once, got it twice");
  const ejk_tensor unknown = {"z", &x.view};
  EXPECT_REFUSED(ejk_execute("toy", &unknown, 1, &out, 1, nullptr, nullptr, nullptr), EJK_INVALID_ARGUMENT,
                 "toy: input name 'z' must be a declared one, got an unknown name; inputs are x, weights");
  EXPECT_REFUSED(ejk_execute("toy", &in, 1, &unknown, 1, nullptr, nullptr, nullptr), EJK_INVALID_ARGUMENT,
                 "outputs are y");
}

TEST_F(CApi, null_pointers_are_refused_by_name) {
  ejk_plan_t* planned = nullptr;
  char* text = nullptr;
  const ejk_tensor no_name = {nullptr, &x.view}, no_tensor = {"x", nullptr};
  constexpr ejk_status kInvalid = EJK_INVALID_ARGUMENT;
  EXPECT_REFUSED(ejk_operations(nullptr), kInvalid, "ejk_operations: json must not be NULL");
  EXPECT_REFUSED(ejk_params_new("toy", nullptr), kInvalid, "params must not be NULL");
  EXPECT_REFUSED(ejk_params_set_i64(nullptr, "reach", 1), kInvalid, "ejk_params_set_i64: params must not be NULL");
  EXPECT_REFUSED(ejk_params_set_i64(new_params().get(), nullptr, 1), kInvalid, "name must not be NULL");
  EXPECT_REFUSED(ejk_params_set_i64s(new_params().get(), "window", nullptr, 2), kInvalid, "values must not be NULL");
  EXPECT_REFUSED(ejk_plan(nullptr, &in, 1, nullptr, nullptr, &planned), kInvalid, "operation must not be NULL");
  EXPECT_REFUSED(ejk_plan("toy", nullptr, 1, nullptr, nullptr, &planned), kInvalid, "the inputs must not be NULL");
  EXPECT_REFUSED(ejk_plan("toy", &in, 1, nullptr, nullptr, nullptr), kInvalid, "plan must not be NULL");
  EXPECT_REFUSED(ejk_plan("toy", &no_name, 1, nullptr, nullptr, &planned), kInvalid,
                 "a tensor's name must not be NULL");
  EXPECT_REFUSED(ejk_plan("toy", &no_tensor, 1, nullptr, nullptr, &planned), kInvalid, "leave absent ones out");
  EXPECT_REFUSED(ejk_plan_run(nullptr, &in, 1, &out, 1, nullptr), kInvalid, "ejk_plan_run: plan must not be NULL");
  EXPECT_REFUSED(ejk_plan_info(nullptr, &text), kInvalid, "plan must not be NULL");
  EXPECT_REFUSED(ejk_execute("toy", &in, 1, nullptr, 1, nullptr, nullptr, nullptr), kInvalid,
                 "the outputs must not be");
  EXPECT_REFUSED(ejk_config_get(nullptr, &text), kInvalid, "ejk_config_get: plan must not be NULL");
  EXPECT_REFUSED(ejk_config_set(plan().get(), nullptr), kInvalid, "config must not be NULL");
  EXPECT_EQ(ejk_plan("toy", nullptr, 0, nullptr, nullptr, &planned), kInvalid);
  EXPECT_THAT(error(), HasSubstr("toy: x must be given, got nothing"));
  ejk_free(nullptr);
  ejk_params_free(nullptr);
}

TEST_F(CApi, a_failing_call_clears_its_out_parameter) {
  auto* planned = reinterpret_cast<ejk_plan_t*>(&in);
  EXPECT_NE(ejk_plan("no such", &in, 1, nullptr, nullptr, &planned), EJK_OK);
  EXPECT_EQ(planned, nullptr);
  EXPECT_THAT(error(), HasSubstr("'no such'; known: flash_attention"));
}

TEST_F(CApi, parameters_are_set_by_type) {
  const Params params = new_params();
  ejk_params_t* p = params.get();
  const int64_t sides[] = {4, 2};
  EXPECT_EQ(ejk_params_set_bool(p, "flip", 7), EJK_OK);
  EXPECT_EQ(ejk_params_set_str(p, "mode", "fancy"), EJK_OK);
  EXPECT_EQ(ejk_params_set_i64(p, "reach", 9), EJK_OK);
  EXPECT_EQ(ejk_params_set_i64s(p, "window", sides, 2), EJK_OK);
  EXPECT_EQ(ejk_params_set_i64(p, "window", 5), EJK_OK);
  EXPECT_EQ(ejk_params_set_f64(p, "limit", 0.5), EJK_OK);
  EXPECT_EQ(ejk_params_set_str(p, "limit", nullptr), EJK_OK) << "absent again";

  EXPECT_REFUSED(ejk_params_set_f64(p, "reach", 1), EJK_INVALID_ARGUMENT, "toy: reach must be of type int, got 1");
  EXPECT_REFUSED(ejk_params_set_i64(p, "flip", 1), EJK_INVALID_ARGUMENT, "toy: flip must be of type bool");
  EXPECT_REFUSED(ejk_params_set_str(p, "mode", "odd"), EJK_INVALID_ARGUMENT, "mode must be plain or fancy, got odd");
  EXPECT_REFUSED(ejk_params_set_str(p, "scale", nullptr), EJK_INVALID_ARGUMENT, "scale must be of type float");
  EXPECT_REFUSED(ejk_params_set_i64s(p, "window", sides, 0), EJK_INVALID_ARGUMENT, "window must be one integer or two");
  EXPECT_REFUSED(ejk_params_set_i64(p, "colour", 1), EJK_INVALID_ARGUMENT, "it has scale, shift, flip");
  EXPECT_EQ(execute(p), EJK_OK) << error();
}

TEST_F(CApi, ranges_are_checked_by_the_call) {
  const Params params = new_params();
  ASSERT_EQ(ejk_params_set_f64(params.get(), "scale", std::nan("")), EJK_OK);
  EXPECT_REFUSED(execute(params.get()), EJK_INVALID_ARGUMENT, "toy: scale must be finite, got nan");
}

TEST_F(CApi, parameters_belong_to_one_operation) {
  ejk_params_t* other = nullptr;
  ASSERT_EQ(ejk_params_new("flash_attention", &other), EJK_OK);
  EXPECT_REFUSED(execute(other), EJK_INVALID_ARGUMENT, "params must be this operation's, got those of flash_attention");
  ejk_params_free(other);
}

TEST_F(CApi, structs_of_other_versions) {
  struct {
    ejk_plan_options known;
    int64_t newer;
  } future = {options(), 0};
  future.known.size = sizeof future;
  EXPECT_EQ(execute(nullptr, &future.known), EJK_OK) << "a newer struct that uses nothing new: " << error();
  future.newer = 1;
  EXPECT_REFUSED(execute(nullptr, &future.known), EJK_INVALID_ARGUMENT, "use only fields that version 0.1.0 knows");
  for (size_t size : {size_t{0}, size_t{8}, sizeof(ejk_plan_options) - 1, size_t{1} << 40}) {
    ejk_plan_options wrong = options();
    wrong.size = size;
    EXPECT_REFUSED(execute(nullptr, &wrong), EJK_INVALID_ARGUMENT, "options.size must be the struct's size, 56, got");
  }
  const ejk_run_options run = {};
  EXPECT_REFUSED(ejk_plan_run(plan().get(), &in, 1, &out, 1, &run), EJK_INVALID_ARGUMENT, "options.size must be");
}

TEST_F(CApi, named_platforms_and_kernels_work_or_fail) {
  ejk_plan_options o = options();
  o.platform = "reference";
  EXPECT_EQ(execute(nullptr, &o), EJK_OK) << error();
  o.platform = "cuda";
  EXPECT_REFUSED(execute(nullptr, &o), EJK_UNSUPPORTED, "fast: the call asks for platform cuda");
  o.platform = "gpu";
  EXPECT_REFUSED(execute(nullptr, &o), EJK_INVALID_ARGUMENT, "options.platform must be one of cuda, cpu, reference");
  o = options();
  o.kernel = "picky";
  EXPECT_REFUSED(execute(nullptr, &o), EJK_UNSUPPORTED, "picky: nothing is good enough");
  o = options();
  o.backend = "tpu";
  EXPECT_REFUSED(execute(nullptr, &o), EJK_UNSUPPORTED, "the call asks for backend tpu");
  o = options();
  o.policy = "cached";
  EXPECT_REFUSED(execute(nullptr, &o), EJK_NO_CONFIG, "no config for kernel fast");
  o.policy = "sometimes";
  EXPECT_REFUSED(execute(nullptr, &o), EJK_INVALID_ARGUMENT, "options.policy must be one of autotune, heuristics");
}

TEST_F(CApi, a_named_device_must_be_the_tensors) {
  const DLDevice host = {kDLCPU, 0}, gpu = {kDLCUDA, 1}, vulkan = {kDLVulkan, 0};
  ejk_plan_options o = options();
  o.device = &host;
  EXPECT_EQ(execute(nullptr, &o), EJK_OK) << error();
  o.device = &gpu;
  EXPECT_REFUSED(execute(nullptr, &o), EJK_INVALID_ARGUMENT,
                 "toy: x must be on cuda:1, which the call asks for, got cpu");
  o.device = &vulkan;
  EXPECT_REFUSED(execute(nullptr, &o), EJK_INVALID_ARGUMENT, "options.device must live in host or CUDA memory");
}

TEST_F(CApi, config_as_override) {
  ejk_plan_options o = options();
  o.config = R"({"block": 32})";
  ASSERT_EQ(execute(nullptr, &o), EJK_OK) << error();
  EXPECT_EQ(ToyFast::last_block, 32);
  for (const char* wrong :
       {"", "{", "[1]", "{\"block\": 1.5}", "{\"block\": 18446744073709551615}", "{\"block\": \"a\"}"}) {
    o.config = wrong;
    EXPECT_REFUSED(execute(nullptr, &o), EJK_INVALID_ARGUMENT, "for example {\"block_q\": 64}");
  }
  o.config = R"({"block": 17})";
  EXPECT_REFUSED(execute(nullptr, &o), EJK_INVALID_ARGUMENT, "block of kernel fast must be one of 16, 32, 64, got 17");
  o.config = R"({"size": 16})";
  EXPECT_REFUSED(execute(nullptr, &o), EJK_INVALID_ARGUMENT, "it has block unroll");
}

TEST_F(CApi, a_config_of_lists_is_refused_however_deep_they_are) {
  constexpr size_t kLevels = 200000;
  const std::string deep = R"({"block": )" + std::string(kLevels, '[') + std::string(kLevels, ']') + "}";
  ejk_plan_options o = options();
  o.config = deep.c_str();
  EXPECT_REFUSED(execute(nullptr, &o), EJK_INVALID_ARGUMENT, "config field block must be an integer, got an array");
}

TEST_F(CApi, a_config_that_is_set_serves_later_plans) {
  auto config_of = [](const Plan& of) {
    char* text = nullptr;
    EXPECT_EQ(ejk_config_get(of.get(), &text), EJK_OK);
    return take(text);
  };
  const Plan before = plan();
  EXPECT_EQ(config_of(before), Json::parse(R"({"operation": "toy", "kernel": "fast", "platform": "cpu",
                                              "tier": "heuristics", "config": {"block": 16, "unroll": 1}})"));
  ASSERT_EQ(ejk_config_set(before.get(), R"({"block": 64})"), EJK_OK) << error();
  const Json after = config_of(plan());
  EXPECT_EQ(after["tier"], "memory");
  EXPECT_EQ(after["config"], Json::parse(R"({"block": 64, "unroll": 1})"));
  EXPECT_EQ(config_of(before)["config"]["block"], 16) << "an existing plan keeps its own";
  ejk_plan_options o = options();
  o.policy = "cached";
  EXPECT_EQ(config_of(plan(nullptr, &o))["tier"], "memory");
  EXPECT_REFUSED(ejk_config_set(before.get(), R"({"block": 1})"), EJK_INVALID_ARGUMENT, "must be one of 16, 32, 64");
}

TEST_F(CApi, errors_belong_to_their_thread_and_stay) {
  EXPECT_NE(ejk_plan_info(nullptr, nullptr), EJK_OK);
  EXPECT_EQ(execute(), EJK_OK);
  EXPECT_EQ(ejk_last_error(nullptr), EJK_INVALID_ARGUMENT) << "success leaves the last error alone";
  std::thread([] {
    const char* text = nullptr;
    EXPECT_EQ(ejk_last_error(&text), EJK_OK);
    EXPECT_STREQ(text, "");
  }).join();
}

struct Heard {
  std::vector<std::pair<int32_t, std::string>> messages;
  static void listen(int32_t level, const char* text, void* user) {
    static_cast<Heard*>(user)->messages.emplace_back(level, text);
  }
};

TEST_F(CApi, the_log_goes_to_the_sink) {
  Heard first, second;
  ASSERT_EQ(ejk_set_log(Heard::listen, &first, EJK_LOG_WARNING), EJK_OK);
  log(LogLevel::warning, "one");
  log(LogLevel::info, "not asked for");
  ASSERT_EQ(ejk_set_log(Heard::listen, &second, EJK_LOG_DEBUG), EJK_OK);
  log(LogLevel::debug, "two");
  ASSERT_EQ(ejk_set_log(nullptr, nullptr, EJK_LOG_OFF), EJK_OK);
  log(LogLevel::warning, "to nobody");
  EXPECT_THAT(first.messages, ::testing::ElementsAre(::testing::Pair(EJK_LOG_WARNING, "one")));
  EXPECT_THAT(second.messages, ::testing::ElementsAre(::testing::Pair(EJK_LOG_DEBUG, "two")));
  EXPECT_REFUSED(ejk_set_log(Heard::listen, &first, 9), EJK_INVALID_ARGUMENT, "level must be EJK_LOG_OFF (0)");
}

TEST_F(CApi, a_sink_may_install_another) {
  ejk_set_log([](int32_t, const char*, void*) { ejk_set_log(nullptr, nullptr, EJK_LOG_OFF); }, nullptr, EJK_LOG_ERROR);
  log(LogLevel::error, "goodbye");
  EXPECT_FALSE(log_enabled(LogLevel::error));
}

TEST_F(CApi, running_out_of_memory_at_any_allocation_is_a_code) {
  int64_t k = 0;
  ejk_status status = EJK_OUT_OF_MEMORY;
  for (; status != EJK_OK && k < 1000; ++k) {
    ejk_plan_t* planned = nullptr;
    fail_new(k + 1);
    status = ejk_plan("toy", &in, 1, nullptr, nullptr, &planned);
    fail_new(0);
    const Plan owner(planned);
    if (status == EJK_OK) break;
    ASSERT_EQ(status, EJK_OUT_OF_MEMORY) << "at allocation " << k + 1 << ": " << error();
    ASSERT_EQ(planned, nullptr);
    ASSERT_THAT(error(), HasSubstr("memory"));
  }
  EXPECT_GT(k, 3);
  EXPECT_EQ(status, EJK_OK);
  fail_host_allocation(1);  // the workspace
  EXPECT_REFUSED(execute(), EJK_OUT_OF_MEMORY, "16 bytes");
}

TEST_F(CApi, threads_share_a_plan) {
  const Plan planned = plan();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      const Owned mine_x(DType::f32, {3, 4}, t), mine_y(DType::f32, {3, 4}, -1);
      const ejk_tensor mine_in = {"x", &mine_x.view}, mine_out = {"y", &mine_y.view};
      alignas(64) std::byte workspace[16];
      const ejk_run_options run = {sizeof run, nullptr, workspace, sizeof workspace, nullptr};
      for (int i = 0; i < 100; ++i) {
        ASSERT_EQ(ejk_plan_run(planned.get(), &mine_in, 1, &mine_out, 1, &run), EJK_OK);
        ASSERT_EQ(mine_y[11], t);
      }
    });
  for (std::thread& thread : threads) thread.join();
}

/// Random damage to a good call: whatever comes out is a code with a sentence, never a crash.
TEST_F(CApi, damaged_calls_are_refused) {
  std::mt19937 random(7);
  auto pick = [&](auto... values) {
    const std::common_type_t<decltype(values)...> all[] = {values...};
    return all[random() % sizeof...(values)];
  };
  constexpr int64_t kHuge = INT64_MAX;
  int refused = 0;
  for (int n = 0; n < 5000; ++n) {
    int64_t shape[7] = {3, 4, 1, 1, 1, 1, 1}, strides[7] = {4, 1, 1, 1, 1, 1, 1};
    DLTensor damaged = x.view;
    damaged.shape = shape;
    damaged.strides = pick(0, 1) != 0 ? strides : nullptr;
    ejk_plan_options o = options();
    const char* name = "x";
    switch (random() % 9) {
      case 0:
        shape[random() % 2] = pick(int64_t{-1}, int64_t{5}, kHuge, -kHuge, int64_t{1} << 62);
        break;
      case 1:
        damaged.strides = strides, strides[1] = pick(int64_t{0}, int64_t{-1}, kHuge, -kHuge, int64_t{2});
        break;
      case 2:
        damaged.ndim = pick(-1, 0, 1, 3, 6, 7, 1 << 30);
        break;
      case 3:
        damaged.dtype = {static_cast<uint8_t>(random()), static_cast<uint8_t>(random()),
                         static_cast<uint16_t>(random())};
        break;
      case 4:
        damaged.device = {static_cast<DLDeviceType>(random() % 20), pick(-1, 0, 3)};
        break;
      case 5:
        damaged.byte_offset = pick(uint64_t{1}, uint64_t{6}, UINT64_MAX);
        break;
      case 6:
        name = pick("", "X", "x ", "y", "weights");
        break;
      case 7:
        o.size = random() % 300;
        break;
      case 8:
        damaged.data = nullptr;
        break;
    }
    const ejk_tensor given = {name, &damaged};
    const ejk_status status = ejk_execute("toy", &given, 1, &out, 1, nullptr, &o, nullptr);
    if (status == EJK_OK) continue;
    ++refused;
    ASSERT_TRUE(status == EJK_INVALID_ARGUMENT || status == EJK_UNSUPPORTED) << error();
    if (status == EJK_INVALID_ARGUMENT) {
      ASSERT_THAT(error(), HasSubstr("must")) << n;
    }
  }
  EXPECT_GT(refused, 3000);
}

TEST_F(CApi, calls_are_recorded_as_those_from_cxx_are) {
  start_recording();
  for (int n = 0; n < 3; ++n) EXPECT_EQ(execute(), EJK_OK) << error();
  stop_recording();
  const std::vector<Invocation> calls = get_invocations();
  clear_invocations();
  ASSERT_EQ(calls.size(), 1u);
  EXPECT_EQ(calls[0].operation, "toy");
  EXPECT_EQ(calls[0].count, 3);
}

}  // namespace
}  // namespace ejk::testing
