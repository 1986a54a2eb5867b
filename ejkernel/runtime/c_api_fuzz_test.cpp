// The C functions with arguments drawn from what is right, what is wrong and what is missing: a code with its sentence
// or the right answer, never a crash.
#include <gmock/gmock.h>

#include <array>
#include <cmath>
#include <memory>
#include <utility>

#include "ejkernel/c_api.h"
#include "ejkernel/core/dlpack.h"
#include "ejkernel/runtime/choose.h"
#include "ejkernel/testing/random.h"
#include "ejkernel/testing/toy.h"

namespace ejk::testing {
namespace {

/// A tensor in the middle of memory that every shape and stride of this test stays inside, described for C.
struct Described {
  Array memory = Array::zeros(DType::u8, {1 << 16});
  std::array<int64_t, kMaxRank> shape = {3, 4}, strides = {4, 1};
  DLTensor view = {};

  void draw(Random& random, double wrong) {
    shape = {3, 4}, strides = {4, 1};
    view = to_dlpack_view(Tensor(memory.as<char>() + (1 << 15), DType::f32, {3, 4}), shape.data(), strides.data());
    const auto axis = static_cast<size_t>(random.below(2));
    if (random.chance(wrong)) view.ndim = random.pick({-1, 0, 1, 3, 6, 7, 1 << 30, INT32_MIN});
    if (random.chance(wrong)) shape[axis] = random.pick<int64_t>({-1, 0, 5, INT64_MAX, INT64_MIN});
    if (random.chance(wrong)) strides[axis] = random.pick<int64_t>({-5, 0, 6, INT64_MAX, INT64_MIN});
    if (random.chance(wrong)) view.shape = nullptr;
    if (random.chance(wrong)) view.strides = nullptr;
    if (random.chance(wrong)) view.data = nullptr;
    if (random.chance(wrong)) view.byte_offset = random.pick<uint64_t>({1, 4, UINT64_MAX});
    if (random.chance(wrong))
      view.dtype = {static_cast<uint8_t>(random.below(20)), static_cast<uint8_t>(random.bits()), 1};
    if (random.chance(wrong)) view.device = {static_cast<DLDeviceType>(random.below(20)), random.pick({-1, 0, 3})};
  }
};

/// Calls one function after another, on what earlier ones made.
class Fuzzer {
 public:
  explicit Fuzzer(uint64_t seed) : random_(seed) {}

  ejk_status call() {
    switch (random_.below(10)) {
      case 0:
        return plan();
      case 1:
        return run();
      case 2:
      case 3:
        return execute();
      case 4:
        return new_params();
      case 5:
        return set_param();
      case 6:
        return take(ejk_plan_info(or_null(plan_.get()), or_null(&text_)));
      case 7:
        return take(ejk_config_get(or_null(plan_.get()), or_null(&text_)));
      case 8:
        return ejk_config_set(or_null(plan_.get()), text_of({"{}", "{\"block\": 32}", "[", "", "{\"x\": []}", "{"}));
      default:
        return everything_else();
    }
  }

 private:
  struct Free {
    void operator()(void* object) const { ejk_free(object); }
  };
  static constexpr double kWrong = 0.04;  // of every argument

  bool wrong() { return random_.chance(kWrong); }
  template <class T>
  T* or_null(T* right) {
    return wrong() ? nullptr : right;
  }
  const char* text_of(std::initializer_list<const char*> texts) { return or_null(random_.pick(texts)); }
  const char* operation() { return wrong() ? text_of({"", "toys", "flash_attention", "\xff"}) : "toy"; }
  size_t size_of(size_t right) { return wrong() ? random_.pick<size_t>({0, 1, right - 8, 4097, SIZE_MAX}) : right; }
  size_t count() { return wrong() ? 0 : 1; }

  ejk_status take(ejk_status status) {
    ejk_free(std::exchange(text_, nullptr));
    return status;
  }

  ejk_tensor named(const char* name, Described& tensor) {
    tensor.draw(random_, kWrong);
    return {wrong() ? text_of({"", "X", "y ", "weights"}) : name, or_null(&tensor.view)};
  }

  ejk_plan_options plan_options() {
    ejk_plan_options options = {};
    options.size = size_of(sizeof options);
    if (wrong()) options.platform = text_of({"", "cpu", "reference", "abacus"});
    if (wrong()) options.backend = text_of({"", "cpu", "gpu", "abacus"});
    if (wrong()) options.kernel = text_of({"", "fast", "abacus"});
    if (wrong()) options.config = text_of({"", "{}", "{\"block\": 3}", "{\"block\": 1e9}", "nonsense"});
    if (wrong()) options.policy = text_of({"", "cached", "abacus"});
    return options;
  }

  ejk_run_options run_options() {
    ejk_run_options options = {};
    options.size = size_of(sizeof options);
    options.workspace = or_null(workspace_ + (wrong() ? 1 : 0));
    options.workspace_bytes = wrong() ? 0 : 64;
    if (wrong()) options.status = reinterpret_cast<uint32_t*>(status_ + 1);
    return options;
  }

  ejk_status plan() {
    const ejk_tensor in = named("x", x_);
    const ejk_plan_options options = plan_options();
    ejk_plan_t* made = nullptr;
    const ejk_status status =
        ejk_plan(operation(), or_null(&in), count(), or_null(params_.get()), or_null(&options), or_null(&made));
    if (made != nullptr) plan_.reset(made);
    return status;
  }

  ejk_status run() {
    const ejk_tensor in = named("x", x_), out = named("y", y_);
    const ejk_run_options options = run_options();
    return ejk_plan_run(or_null(plan_.get()), or_null(&in), count(), or_null(&out), count(), or_null(&options));
  }

  ejk_status execute() {
    const ejk_tensor in = named("x", x_), out = named("y", y_);
    const ejk_plan_options options = plan_options();
    const ejk_run_options run = run_options();
    const ejk_params_t* params = or_null(params_.get());
    const size_t num_outputs = count();
    x_.memory.as<float>()[(1 << 13) + 1] = 3;
    const ejk_status status = ejk_execute(operation(), or_null(&in), count(), or_null(&out), num_outputs, params,
                                          or_null(&options), or_null(&run));
    if (status == EJK_OK && num_outputs == 1) expect_right(params == nullptr ? 1 : scale_);
    return status;
  }

  void expect_right(double scale) const {
    const Tensor x = from_dlpack(x_.view), y = from_dlpack(y_.view);
    for (int64_t i = 0; i < y.num_elements(); ++i) ASSERT_EQ(get(y, i), scale * get(x, i)) << to_string(x);
  }

  ejk_status new_params() {
    ejk_params_t* made = nullptr;
    const ejk_status status = ejk_params_new(operation(), or_null(&made));
    if (made != nullptr) params_.reset(made), scale_ = 1;
    return status;
  }

  ejk_status set_param() {
    ejk_params_t* params = or_null(params_.get());
    const char* name = text_of({"flip", "mode", "reach", "window", "limit", "", "no_such_parameter"});
    const int64_t values[] = {random_.between(-2, 9), random_.between(-2, 9)};
    switch (random_.below(6)) {
      case 0:
        return ejk_params_set_i64(params, name, random_.pick<int64_t>({0, -1, 7, INT64_MAX, INT64_MIN}));
      case 1:
        return ejk_params_set_f64(params, name, random_.pick({0.0, -1.0, 2.5, 1e308 * 10, std::nan("")}));
      case 2:
        return ejk_params_set_bool(params, name, static_cast<int>(random_.between(-1, 2)));
      case 3:
        return ejk_params_set_str(params, name, text_of({"plain", "fancy", "", "none"}));
      case 4:
        return ejk_params_set_i64s(params, name, or_null(values), random_.pick<size_t>({0, 1, 2}));
      default: {
        const double scale = random_.pick({2.0, -1.0, std::nan(""), 0.5});
        const ejk_status status = ejk_params_set_f64(params, "scale", scale);
        if (status == EJK_OK) scale_ = scale;
        return status;
      }
    }
  }

  ejk_status everything_else() {
    ejk_xla handlers = {size_of(sizeof handlers), nullptr, nullptr, nullptr};
    switch (random_.below(3)) {
      case 0:
        return take(ejk_operations(or_null(&text_)));
      case 1:
        return ejk_xla_handlers(text_of({"cpu", "cuda", "reference", "", "abacus"}), or_null(&handlers));
      default:
        return ejk_set_log(nullptr, nullptr, static_cast<int32_t>(random_.between(-2, 6)));
    }
  }

  Random random_;
  Described x_, y_;
  std::unique_ptr<ejk_plan_t, Free> plan_;
  std::unique_ptr<ejk_params_t, Free> params_;
  double scale_ = 1;
  char* text_ = nullptr;
  alignas(64) std::byte workspace_[128];
  alignas(4) char status_[8];
};

TEST(CApiFuzz, every_function_answers_whatever_it_is_given) {
  register_toys();
  int done = 0, refused = 0;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    Fuzzer fuzzer(seed);
    for (int n = 0; n < 100 && !::testing::Test::HasFailure(); ++n) {
      SCOPED_TRACE("seed " + std::to_string(seed) + ", call " + std::to_string(n));
      const ejk_status status = fuzzer.call();
      ++(status == EJK_OK ? done : refused);
      if (status == EJK_OK) continue;
      const char* text = nullptr;
      EXPECT_EQ(ejk_last_error(&text), status);
      EXPECT_TRUE(status == EJK_INVALID_ARGUMENT || status == EJK_UNSUPPORTED || status == EJK_NO_CONFIG) << text;
      if (status == EJK_INVALID_ARGUMENT) {
        EXPECT_THAT(text, ::testing::MatchesRegex(".+: .+ must .+, got .+; .+"));
      }
    }
  }
  EXPECT_GT(done, 1000);
  EXPECT_GT(refused, 1000);
  clear_memory_configs();
}

}  // namespace
}  // namespace ejk::testing
