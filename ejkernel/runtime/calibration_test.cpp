#include "ejkernel/runtime/calibration.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "ejkernel/core/error.h"
#include "ejkernel/core/store.h"
#include "ejkernel/platform/cpu/amx.h"
#include "ejkernel/platform/cpu/parallel_for.h"
#include "ejkernel/platform/cpu/peak.h"
#include "ejkernel/runtime/config.h"
#include "ejkernel/runtime/devices.h"
#include "ejkernel/runtime/registry.h"
#include "ejkernel/testing/fake_cuda.h"
#include "ejkernel/testing/temporary_folder.h"

namespace ejk {
namespace {

TEST(Calibration, peaks_are_rates_that_a_processor_can_have) {
  const Peaks peaks = measure_peaks({}, 0.02);
  EXPECT_EQ(peaks.num_threads, cpu::num_threads());
  EXPECT_GT(peaks.flops_per_second, 1e7);  // sanitizers and emulation take their share
  EXPECT_LT(peaks.flops_per_second, 1e15);
  const auto expect_rate = [](double rate, bool has_instruction) {
    if (has_instruction) {
      EXPECT_GT(rate, 1e7);
      EXPECT_LT(rate, 1e15);
    } else {
      EXPECT_EQ(rate, 0);
    }
  };
  expect_rate(peaks.f64_flops_per_second, cpu::f64_multiply_add(1) > 0);
  expect_rate(peaks.bf16_flops_per_second, cpu::bf16_multiply_add(1) > 0 || cpu::matrix_multiply_add(1) > 0);
  expect_rate(peaks.i8_flops_per_second, cpu::i8_multiply_add(1) > 0 || cpu::i8_matrix_multiply_add(1) > 0);
  expect_rate(peaks.f8_flops_per_second, false);
  EXPECT_GT(peaks.bytes_per_second, 1e7);
  EXPECT_LT(peaks.bytes_per_second, 1e14);
}

TEST(Calibration, devices_that_are_not_here_are_refused) {
  EXPECT_THROW(measure_peaks({.kind = DeviceKind::cuda, .ordinal = 1000}), Unsupported);
}

TEST(Calibration, the_roofline_is_the_slower_of_the_two) {
  Peaks peaks{.flops_per_second = 100, .bytes_per_second = 10};
  EXPECT_EQ(roofline_seconds(peaks, DType::f32, 200, 10), 2);
  EXPECT_EQ(roofline_seconds(peaks, DType::f32, 200, 30), 3);
  EXPECT_EQ(roofline_seconds(peaks, DType::bf16, 200, 5), 2) << "without an instruction for pairs";
  peaks.bf16_flops_per_second = 200;
  EXPECT_EQ(roofline_seconds(peaks, DType::bf16, 200, 5), 1);
  EXPECT_EQ(roofline_seconds(peaks, DType::f16, 200, 5), 2);
}

class KnownPeaks : public ::testing::Test {
 protected:
  KnownPeaks() {
    forget_peaks();
    use_store(folder_.path().string());
  }
  ~KnownPeaks() override {
    use_store("");
    forget_peaks();
  }

 private:
  const testing::TemporaryFolder folder_;
};

TEST_F(KnownPeaks, are_measured_once_and_known_to_the_next_process) {
  const Peaks peaks = known_peaks();
  EXPECT_GT(peaks.flops_per_second, 0);
  EXPECT_EQ(known_peaks().flops_per_second, peaks.flops_per_second);
  forget_peaks();  // as in a process that begins
  EXPECT_EQ(known_peaks().flops_per_second, peaks.flops_per_second);
  for (const auto& [name, rate] : kRates) EXPECT_EQ(known_peaks().*rate, peaks.*rate) << name;
  EXPECT_EQ(known_peaks().num_threads, peaks.num_threads);
}

TEST_F(KnownPeaks, only_rise) {
  keep_peaks({}, {.flops_per_second = 100, .bf16_flops_per_second = 20, .bytes_per_second = 10});
  keep_peaks({}, {.flops_per_second = 50, .bf16_flops_per_second = 30, .bytes_per_second = 5});
  EXPECT_EQ(known_peaks().flops_per_second, 100);
  EXPECT_EQ(known_peaks().bf16_flops_per_second, 30);
  EXPECT_EQ(known_peaks().bytes_per_second, 10);
  forget_peaks();
  keep_peaks({}, {.flops_per_second = 60, .bf16_flops_per_second = 0, .bytes_per_second = 20});
  EXPECT_EQ(known_peaks().flops_per_second, 100) << "the store's count too";
  EXPECT_EQ(known_peaks().bytes_per_second, 20);
}

TEST_F(KnownPeaks, are_told_to_heuristics_where_somebody_measured_them) {
  EXPECT_EQ(calibrated_properties({}).bf16_speedup, 0) << "asking measures nothing";
  keep_peaks({}, {.flops_per_second = 100, .bf16_flops_per_second = 20, .bytes_per_second = 10});
  EXPECT_EQ(calibrated_properties({}).bf16_speedup, 0.2);
  EXPECT_EQ(calibrated_properties({}).product, device_properties({}).product);
  forget_peaks();
  EXPECT_EQ(calibrated_properties({}).bf16_speedup, 0.2) << "the store knows";
}

/// What the kernel `cpu` would take for the call, its other inputs absent.
ConfigBlock heuristic_for(std::string_view operation, std::vector<Tensor> inputs, const KernelInfo*& kernel) {
  const auto registered = KernelRegistry::instance().find(operation);
  const Operation& op = *registered->declaration;
  kernel = find_kernel(*registered, "cpu");
  inputs.resize(op.inputs.size());
  const std::vector<Tensor> outputs(op.outputs.size());
  return kernel->heuristic({.inputs = inputs, .params = &op.default_params, .outputs = outputs},
                           calibrated_properties({}));
}

TEST_F(KnownPeaks, slow_pairs_are_not_what_a_heuristic_takes) {
  keep_peaks({}, {.flops_per_second = 100, .bf16_flops_per_second = 20, .bytes_per_second = 10});
  const Tensor rows(nullptr, DType::bf16, {1, 256, 2, 64});
  const Tensor lhs(nullptr, DType::bf16, {512, 512}), rhs(nullptr, DType::bf16, {1, 512, 512});
  const std::pair<std::string_view, std::vector<Tensor>> calls[] = {{"flash_attention", {rows, rows, rows}},
                                                                    {"grouped_matmul", {lhs, rhs}}};
  for (const auto& [operation, inputs] : calls) {
    const KernelInfo* kernel = nullptr;
    const ConfigBlock config = heuristic_for(operation, inputs, kernel);
    EXPECT_THAT(config_values(*kernel, config), ::testing::Contains(std::pair<std::string, int64_t>("bf16_dot", 0)))
        << operation;
  }
}

TEST_F(KnownPeaks, that_cannot_be_read_are_measured_anew) {
  for (const char* text :
       {"", "no json", "[]", "{}", R"({"flops": "many"})",
        R"({"flops":0,"f64_flops":0,"bf16_flops":0,"f8_flops":0,"i8_flops":0,"bytes":1,"num_threads":1})",
        R"({"flops":1,"f64_flops":1,"bf16_flops":1,"f8_flops":1,"bytes":1,"num_threads":1})"}) {
    ASSERT_TRUE(
        store().put({.environment = device_fingerprint({}), .group = "calibration", .text = "peaks, revision 2"},
                    {.value = text, .provenance = ""}));
    forget_peaks();
    EXPECT_GT(known_peaks().flops_per_second, 1e6) << text;
  }
}

TEST(Calibration, operations_are_counted_by_rounds) {
  const double once = cpu::multiply_add(1);
  EXPECT_GT(once, 0);
  for (const auto step : {cpu::multiply_add, cpu::f64_multiply_add, cpu::bf16_multiply_add, cpu::i8_multiply_add,
                          cpu::matrix_multiply_add, cpu::i8_matrix_multiply_add})
    EXPECT_EQ(step(3), 3 * step(1));
  // A vector holds half as many numbers of twice the size.
  if (const double f64 = cpu::f64_multiply_add(1); f64 > 0) {
    EXPECT_EQ(f64, once / 2);
  }
  if (const double bf16 = cpu::bf16_multiply_add(1); bf16 > 0) {
    EXPECT_EQ(bf16, 2 * once);
  }
  if (const double i8 = cpu::i8_multiply_add(1); i8 > 0) {
    EXPECT_EQ(i8, 4 * once);
  }
}

TEST(Calibration, every_word_is_read) {
  for (int64_t count : {0, 1, 7, 64, 1000, 1003}) {
    std::vector<uint32_t> words(static_cast<size_t>(count));
    for (size_t i = 0; i < words.size(); ++i) words[i] = static_cast<uint32_t>(i * 2654435761u);
    const uint32_t all = cpu::read_words(words.data(), count);
    for (uint32_t& word : words) {
      word ^= 0x80u;
      EXPECT_EQ(cpu::read_words(words.data(), count), all ^ 0x80u);
      word ^= 0x80u;
    }
  }
}

TEST(Peaks, are_those_of_the_numbers_dtype) {
  Peaks peaks{.flops_per_second = 1, .bf16_flops_per_second = 10, .bytes_per_second = 1};
  EXPECT_EQ(peaks.flops_of(DType::f32), 1);
  EXPECT_EQ(peaks.flops_of(DType::bf16), 10);
  EXPECT_EQ(peaks.flops_of(DType::f16), 1) << "a CPU widens it";
  peaks.f16_as_bf16 = true;
  EXPECT_EQ(peaks.flops_of(DType::f16), 10);
  peaks.bf16_flops_per_second = 0;
  EXPECT_EQ(peaks.flops_of(DType::bf16), 1);
}

TEST(Peaks, of_numbers_that_a_host_widens_are_those_of_what_they_become) {
  Peaks host{.flops_per_second = 1, .f64_flops_per_second = 0.5, .bf16_flops_per_second = 10, .bytes_per_second = 1};
  EXPECT_EQ(host.flops_of(DType::f64), 0.5);
  for (const DType dtype : {DType::e4m3, DType::e5m2, DType::i8, DType::i4})
    EXPECT_EQ(host.rate_of(dtype).of, "bfloat16") << name(dtype);
  host.i8_flops_per_second = 20;
  EXPECT_EQ(host.flops_of(DType::i8), 20);
  EXPECT_EQ(host.rate_of(DType::i4).of, "int8");
  EXPECT_EQ(host.rate_of(DType::e4m3).of, "bfloat16");
  host.bf16_flops_per_second = 0;
  EXPECT_EQ(host.rate_of(DType::e4m3).of, "float32");
  EXPECT_EQ(host.rate_of(DType::i64).of, "") << "nothing multiplies those";
  Peaks gpu{.flops_per_second = 1, .f8_flops_per_second = 40, .bytes_per_second = 1, .f16_as_bf16 = true};
  EXPECT_EQ(gpu.flops_of(DType::e5m2), 40);
  EXPECT_EQ(gpu.rate_of(DType::i8).of, "") << "its matrix units widen nothing";
  EXPECT_EQ(gpu.flops_of(DType::i8), 1);
}

TEST(Peaks, say_what_a_percentage_refers_to) {
  Peaks host{.flops_per_second = 10, .bf16_flops_per_second = 0, .bytes_per_second = 1};
  Peaks gpu{.flops_per_second = 10, .bf16_flops_per_second = 0, .bytes_per_second = 1, .f16_as_bf16 = true};
  const auto told = [](const Peaks& peaks, DType dtype, double flops, double bytes) {
    const Ceiling ceiling = ceiling_of(peaks, dtype, flops, bytes);
    return std::pair(std::string(ceiling.of), ceiling.seconds);
  };
  using Told = std::pair<std::string, double>;
  EXPECT_EQ(told(host, DType::f32, 100, 2), Told("float32", 10));
  EXPECT_EQ(told(host, DType::f32, 100, 20), Told("memory", 20));
  EXPECT_EQ(told(host, DType::bf16, 100, 2), Told("float32", 10)) << "a CPU widens it";
  EXPECT_EQ(told(gpu, DType::bf16, 100, 2), Told("", 0)) << "matrix units that nobody measured";
  EXPECT_EQ(told(gpu, DType::f16, 100, 20), Told("memory", 20)) << "whatever their rate is";
  host.bf16_flops_per_second = gpu.bf16_flops_per_second = 50;
  EXPECT_EQ(told(host, DType::bf16, 100, 1), Told("bfloat16", 2));
  EXPECT_EQ(told(host, DType::f16, 100, 1), Told("float32", 10));
  EXPECT_EQ(told(gpu, DType::f16, 100, 1), Told("bfloat16", 2));
  for (const DType dtype : {DType::e4m3, DType::i8, DType::f64}) {
    EXPECT_EQ(told(gpu, dtype, 100, 1), Told("", 0)) << name(dtype);
    EXPECT_EQ(told(gpu, dtype, 0, 1), Told("memory", 1)) << name(dtype);
  }
  EXPECT_EQ(told(host, DType::e4m3, 100, 1), Told("bfloat16", 2)) << "a CPU widens it";
  EXPECT_EQ(told(gpu, DType::f64, 100, 20), Told("", 0)) << "it is slower than float32";
}

TEST(Peaks, of_a_gpu_without_room_are_refused_and_what_is_measured_takes_an_eighth_at_most) {
  const testing::FakeCuda gpu;  // 1 MiB of it is free
  EXPECT_THAT(
      [] {
        measure_peaks({DeviceKind::cuda, 0}, 0.01);
      },
      ::testing::ThrowsMessage<Unsupported>(::testing::HasSubstr("an eighth of its free memory is 0 MiB")));
}

TEST(Peaks, that_are_not_known_bound_nothing) {
  EXPECT_EQ(roofline_seconds({.bytes_per_second = 2}, DType::f32, 100, 4), 2);
  EXPECT_EQ(roofline_seconds({}, DType::f32, 100, 4), 0);
}

}  // namespace
}  // namespace ejk
