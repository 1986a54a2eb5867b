// Each entry of the C++ and the C interface with its k-th `new` failing, k = 1, 2, … until none is left to fail: a
// typed error or the result. What would leak shows in the builds with AddressSanitizer.
#include <gmock/gmock.h>

#include <memory>

#include "ejkernel/c_api.h"
#include "ejkernel/core/dlpack.h"
#include "ejkernel/core/error.h"
#include "ejkernel/ops/flash_attention/flash_attention.h"
#include "ejkernel/runtime/api.h"
#include "ejkernel/runtime/explain.h"
#include "ejkernel/testing/allocation_counter.h"

namespace ejk::testing {
namespace {

constexpr int64_t kMostAllocations = 5000;

/// An attention call, and the same for C.
struct Attention {
  explicit Attention(int64_t head_dim) : query(Array::zeros(DType::f32, {1, 3, 1, head_dim})), out(query.clone()) {}
  Attention(const Attention&) = delete;

  Array query, out;
  FlashAttention::Inputs inputs = {.query = query, .key = query, .value = query};
  std::array<int64_t, kMaxRank> shape = {}, strides = {};
  DLTensor query_view = to_dlpack_view(query, shape.data(), strides.data());
  DLTensor out_view = to_dlpack_view(out, shape.data(), strides.data());
  const ejk_tensor c_inputs[3] = {{"query", &query_view}, {"key", &query_view}, {"value", &query_view}};
  const ejk_tensor c_output = {"out", &out_view};
};

/// How many allocations `call` makes, after it was called with the first failing, with the second, … Each call has a
/// problem of its own, so that nothing of it is cached. A failure may be survived.
template <class Call>
int64_t fail_each_allocation(Call call) {
  for (int64_t k = 1; k < kMostAllocations; ++k) {
    const Attention problem(1 + k % 500);
    const int64_t before = num_news();
    fail_new(k);
    call(problem);
    fail_new(0);
    if (num_news() - before < k) return num_news() - before;
  }
  ADD_FAILURE() << "there is no end of allocations";
  return 0;
}

/// The same of C++, which throws nothing but what docs/errors.md promises.
template <class Call>
int64_t errors_are_typed(Call call) {
  return fail_each_allocation([&](const Attention& problem) {
    try {
      call(problem);
    } catch (const Internal& error) {
      fail_new(0);
      EXPECT_EQ(error.code(), ErrorCode::out_of_memory) << error.what();
      EXPECT_THAT(error.what(), ::testing::HasSubstr("must succeed, got none"));
    }
  });
}

/// The same of a C function, which answers with a code and its sentence.
template <class Call>
int64_t codes_are_typed(Call call) {
  return fail_each_allocation([&](const Attention& problem) {
    const ejk_status status = call(problem);
    fail_new(0);
    if (status == EJK_OK) return;
    const char* text = nullptr;
    EXPECT_EQ(ejk_last_error(&text), EJK_OUT_OF_MEMORY);
    EXPECT_THAT(text, ::testing::HasSubstr("memory"));
  });
}

class OutOfMemory : public ::testing::Test {
  const PolicyOverride no_tuning_{{.autotune = false}};
};

// ---- C++ ----

TEST_F(OutOfMemory, in_plan) {
  EXPECT_GT(errors_are_typed([](const Attention& a) { plan<FlashAttention>(a.inputs); }), 10);
}

/// A plan that runs allocates nothing; what tells its caller that a tensor is wrong does.
TEST_F(OutOfMemory, in_run) {
  const auto planned = plan<FlashAttention>(Attention(16).inputs);
  EXPECT_GT(errors_are_typed([&](const Attention& wrong) {
              try {
                planned.run(wrong.inputs, {.out = wrong.out});
              } catch (const InvalidArgument&) {
              }
            }),
            0);
}

TEST_F(OutOfMemory, in_execute) {
  EXPECT_GT(errors_are_typed([](const Attention& a) { execute<FlashAttention>(a.inputs); }), 10);
}

TEST_F(OutOfMemory, in_an_executor) {
  const Executor executor({.kernel = "reference"});
  EXPECT_GT(errors_are_typed([&](const Attention& a) {
              executor(FlashAttention::kName, to_array(a.inputs), ParamsBlock::of(FlashAttention::Params()));
            }),
            10);
}

TEST_F(OutOfMemory, in_vjp) {
  EXPECT_GT(errors_are_typed([](const Attention& a) {
              const auto [results, pull_back] = vjp<FlashAttention>(a.inputs);
              pull_back({.out = a.out});
            }),
            20);
}

TEST_F(OutOfMemory, in_explain) {
  EXPECT_GT(errors_are_typed([](const Attention& a) {
              explain(FlashAttention::kName, to_array(a.inputs), ParamsBlock::of(FlashAttention::Params()));
            }),
            20);
}

TEST_F(OutOfMemory, in_an_array) {
  EXPECT_EQ(errors_are_typed([](const Attention&) { Array(DType::f32, {3}); }), 1) << "who owns it";
}

// ---- C ----

class OutOfMemoryInC : public OutOfMemory {
 protected:
  struct Free {
    void operator()(void* object) const { ejk_free(object); }
  };
  /// A function that hands out something, which is nothing unless it succeeds.
  template <class T, class Function>
  static ejk_status handed_out(Function function) {
    T* made = reinterpret_cast<T*>(&made);
    const ejk_status status = function(&made);
    EXPECT_EQ(made != nullptr, status == EJK_OK);
    ejk_free(made);
    return status;
  }
};

TEST_F(OutOfMemoryInC, in_params) {
  EXPECT_GT(
      codes_are_typed([](const Attention&) {
        return handed_out<ejk_params_t>([](ejk_params_t** made) { return ejk_params_new("flash_attention", made); });
      }),
      0);
  ejk_params_t* params = nullptr;
  ASSERT_EQ(ejk_params_new("flash_attention", &params), EJK_OK);
  const int64_t window[] = {4, 0};
  codes_are_typed([&](const Attention&) { return ejk_params_set_i64(params, "attention_sink_size", 4); });
  codes_are_typed([&](const Attention&) { return ejk_params_set_f64(params, "softmax_scale", 0.5); });
  codes_are_typed([&](const Attention&) { return ejk_params_set_bool(params, "causal", 1); });
  codes_are_typed([&](const Attention&) { return ejk_params_set_str(params, "causal_align", "bottom_right"); });
  EXPECT_GT(codes_are_typed([&](const Attention&) { return ejk_params_set_i64s(params, "sliding_window", window, 2); }),
            0);
  ejk_params_free(params);
}

TEST_F(OutOfMemoryInC, in_plan_and_execute) {
  EXPECT_GT(codes_are_typed([](const Attention& a) {
              return handed_out<ejk_plan_t>([&](ejk_plan_t** plan) {
                return ejk_plan("flash_attention", a.c_inputs, 3, nullptr, nullptr, plan);
              });
            }),
            10);
  EXPECT_GT(codes_are_typed([](const Attention& a) {
              return ejk_execute("flash_attention", a.c_inputs, 3, &a.c_output, 1, nullptr, nullptr, nullptr);
            }),
            10);
}

TEST_F(OutOfMemoryInC, in_run) {
  const Attention planned(16);
  ejk_plan_t* plan = nullptr;
  ASSERT_EQ(ejk_plan("flash_attention", planned.c_inputs, 3, nullptr, nullptr, &plan), EJK_OK);
  EXPECT_GT(fail_each_allocation([&](const Attention& wrong) {
              const ejk_status status = ejk_plan_run(plan, wrong.c_inputs, 3, &wrong.c_output, 1, nullptr);
              EXPECT_TRUE(status == EJK_OUT_OF_MEMORY || status == EJK_INVALID_ARGUMENT);
            }),
            0);
  ejk_free(plan);
}

TEST_F(OutOfMemoryInC, in_handlers_and_the_log) {
  codes_are_typed([&](const Attention&) {
    ejk_xla handlers = {sizeof handlers, nullptr, nullptr, nullptr};
    const ejk_status status = ejk_xla_handlers("cpu", &handlers);
    return status == EJK_UNSUPPORTED ? EJK_OK : status;  // a build without XLA's headers
  });
  EXPECT_GT(codes_are_typed([](const Attention& a) {
              const auto sink = [](int32_t, const char*, void*) {};
              return ejk_set_log(sink, const_cast<Array*>(&a.query), EJK_LOG_ERROR);
            }),
            0);
  ejk_set_log(nullptr, nullptr, EJK_LOG_OFF);
}

}  // namespace
}  // namespace ejk::testing
