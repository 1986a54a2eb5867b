// What of a call is recorded, what never is, and that the file of it can be trusted no further than it is checked.
#include "ejkernel/runtime/recorded.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <sstream>
#include <thread>

#include "ejkernel/core/error.h"
#include "ejkernel/core/log.h"
#include "ejkernel/core/store.h"
#include "ejkernel/ops/mean_pooling/mean_pooling.h"
#include "ejkernel/runtime/devices.h"
#include "ejkernel/testing/allocation_counter.h"
#include "ejkernel/testing/fake_cuda.h"
#include "ejkernel/testing/temporary_folder.h"
#include "ejkernel/testing/toy.h"

namespace ejk::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::ThrowsMessage;

class Recorded : public ::testing::Test {
 protected:
  Recorded() { register_toys(); }
  ~Recorded() override {
    stop_recording();
    clear_invocations();
    set_log(nullptr, nullptr);
  }

  static std::vector<int64_t> counts() {
    std::vector<int64_t> all;
    for (const Invocation& call : get_invocations()) all.push_back(call.count);
    return all;
  }
  static std::string text_of(const std::string& path) {
    std::ostringstream all;
    all << std::ifstream(path).rdbuf();
    return all.str();
  }
  static size_t lines_in(const std::string& path) {
    const std::string text = text_of(path);
    return static_cast<size_t>(std::count(text.begin(), text.end(), '\n'));
  }

  const PolicyOverride heuristics_only{{.autotune = false}};
  const TemporaryFolder folder;
  const Array x = Array::zeros(DType::f32, {8, 4});
};

// ---- which calls ----

TEST_F(Recorded, is_nothing_until_somebody_asks) {
  execute<Toy>({.x = x});
  EXPECT_THAT(get_invocations(), IsEmpty());
}

TEST_F(Recorded, is_every_run_counted_by_what_tells_calls_apart) {
  start_recording();
  for (int n = 0; n < 3; ++n) execute<Toy>({.x = x});
  execute<Toy>({.x = x}, {.scale = 2});
  execute<Toy>({.x = Array::zeros(DType::f32, {9, 4})});
  execute<Toy>({.x = Array::zeros(DType::f64, {8, 4})});
  execute<Toy>({.x = x, .weights = Array::zeros(DType::f32, {1, 4})});
  execute<Toy>({.x = x}, {}, {.plan = {.platform = Platform::reference}});
  execute<Toy>({.x = Tensor(x.data(), DType::f32, {4, 4}, {8, 1})});
  execute<Toy>({.x = Tensor(x.data(), DType::f32, {4, 4})});
  EXPECT_THAT(counts(), ElementsAre(3, 1, 1, 1, 1, 1, 1, 1));
  const auto plan = ejk::plan<Toy>({.x = x}, {}, {.platform = Platform::reference});
  EXPECT_EQ(counts()[5], 1) << "planning is not running";
  const Array y = Array::zeros(DType::f32, {8, 4});
  plan.run({.x = x}, {.y = y});
  EXPECT_EQ(counts()[5], 2);
  stop_recording();
  execute<Toy>({.x = x});
  EXPECT_EQ(counts()[0], 3);
  clear_invocations();
  EXPECT_THAT(get_invocations(), IsEmpty());
}

TEST_F(Recorded, is_what_a_call_was_like_and_nothing_that_it_holds) {
  start_recording();
  execute<Toy>({.x = x}, {.scale = 2, .mode = ToyMode::fancy}, {.plan = {.kernel = "fast"}});
  const std::vector<Invocation> calls = get_invocations();
  ASSERT_THAT(calls, SizeIs(1));
  EXPECT_EQ(calls[0].operation, "toy");
  ASSERT_THAT(calls[0].inputs, SizeIs(2));
  EXPECT_EQ(to_string(calls[0].inputs[0]), "f32[8, 4]");
  EXPECT_EQ(calls[0].inputs[0].data, nullptr);
  EXPECT_FALSE(calls[0].inputs[1].present());
  EXPECT_EQ(calls[0].params.as<Toy::Params>().scale, 2);
  EXPECT_EQ(calls[0].params.as<Toy::Params>().mode, ToyMode::fancy);
  EXPECT_EQ(calls[0].options.kernel, "fast");
  EXPECT_THAT(calls[0].samples, ElementsAre(IsEmpty(), IsEmpty())) << "no floats";
  EXPECT_GT(calls[0].seconds, 0);
}

TEST_F(Recorded, is_no_call_that_names_its_config_and_none_in_a_scope_that_says_so) {
  start_recording();
  execute<Toy>({.x = x}, {}, {.plan = {.config = ConfigValues{{"block", 32}}}});
  {
    const Unrecorded outer;
    const Unrecorded inner;
    execute<Toy>({.x = x});
  }
  EXPECT_THAT(get_invocations(), IsEmpty());
  execute<Toy>({.x = x});
  EXPECT_THAT(counts(), ElementsAre(1));
}

TEST_F(Recorded, is_what_is_recorded_by_hand_whether_recording_is_on_or_off) {
  const Plan plan = ejk::plan<Toy>({.x = Tensor(nullptr, DType::f32, {8, 4})});
  record_invocation(plan);
  start_recording();
  record_invocation(plan);
  execute<Toy>({.x = x});
  EXPECT_THAT(counts(), ElementsAre(3));
  const std::vector<Tensor> others = {Array::zeros(DType::f32, {9, 4}), Tensor()};
  EXPECT_THAT([&] { record_invocation(plan, others); },
              ThrowsMessage<InvalidArgument>(HasSubstr("toy: x must equal what was planned, f32[8, 4]")));
}

// ---- index tensors ----

/// mean_pooling of so many sequences, a row each, whose offsets are 0, 1, 2 …
class RecordedIndices : public Recorded {
 protected:
  static Array offsets(int64_t num_sequences) {
    const Array all(DType::i32, {num_sequences + 1});
    for (int64_t n = 0; n <= num_sequences; ++n) set(all, n, static_cast<double>(n));
    return all;
  }
  static std::vector<int64_t> sample_of_offsets(int64_t num_sequences) {
    clear_invocations();
    start_recording();
    const Array rows = Array::zeros(DType::f32, {num_sequences, 2}), cuts = offsets(num_sequences);
    execute<MeanPooling>({.x = rows, .cu_seqlens = cuts});
    const std::vector<Invocation> calls = get_invocations();
    EXPECT_THAT(calls.at(0).samples.at(0), IsEmpty());
    return calls.at(0).samples.at(2);
  }
};

TEST_F(RecordedIndices, are_kept_whole_when_they_are_small_and_not_at_all_when_they_are_large) {
  EXPECT_THAT(sample_of_offsets(3), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(sample_of_offsets(1023), SizeIs(1024));
  EXPECT_THAT(sample_of_offsets(1024), IsEmpty());
}

TEST_F(RecordedIndices, of_equal_calls_are_the_first_ones_and_tell_none_apart) {
  EXPECT_THAT(sample_of_offsets(3), ElementsAre(0, 1, 2, 3));
  const Array rows = Array::zeros(DType::f32, {3, 2}), cuts = offsets(3);
  set(cuts, 1, 3);
  execute<MeanPooling>({.x = rows, .cu_seqlens = cuts});
  EXPECT_THAT(counts(), ElementsAre(2));
  EXPECT_THAT(get_invocations()[0].samples[2], ElementsAre(0, 1, 2, 3));
}

TEST_F(RecordedIndices, are_never_read_from_a_device) {
  const FakeCuda fake;
  const Device gpu{DeviceKind::cuda, 0};
  start_recording();
  execute<MeanPooling>({.x = Array::zeros(DType::f32, {3, 64}, gpu), .cu_seqlens = Array::zeros(DType::i32, {4}, gpu)});
  const std::vector<Invocation> calls = get_invocations();
  ASSERT_THAT(calls, SizeIs(1));
  EXPECT_THAT(calls[0].samples[2], IsEmpty());
  EXPECT_EQ(calls[0].seconds, 0) << "the host does not know how long it takes";
  EXPECT_EQ(calls[0].inputs[0].device, gpu);
  EXPECT_THAT(to_json(calls[0]), AllOf(HasSubstr(R"("device":"cuda:0")"), Not(HasSubstr("values"))));
}

// ---- bounds, threads, failures ----

TEST_F(Recorded, is_bounded_and_what_does_not_fit_is_counted) {
  const auto call = [&](size_t n) { record_invocation(ejk::plan<Toy>({.x = x}, {.scale = static_cast<double>(n)})); };
  for (size_t n = 0; n < kMaxInvocations + 5; ++n) call(n);
  EXPECT_EQ(get_invocations().size(), kMaxInvocations);
  EXPECT_EQ(num_dropped_invocations(), 5);
  call(7);
  EXPECT_EQ(counts()[7], 2) << "those that are there are counted on";
  clear_invocations();
  EXPECT_EQ(num_dropped_invocations(), 0);
  call(kMaxInvocations);
  EXPECT_THAT(counts(), ElementsAre(1));
}

TEST_F(Recorded, may_come_from_many_threads_while_others_look_and_forget) {
  start_recording(folder / "calls");
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread)
    threads.emplace_back([&] {
      const PolicyOverride here({.autotune = false});
      for (int n = 0; n < 200; ++n) execute<Toy>({.x = x}, {.scale = static_cast<double>(n % 10)});
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(counts(), ElementsAre(80, 80, 80, 80, 80, 80, 80, 80, 80, 80));
  std::atomic<bool> done = false;
  std::thread other([&] {
    while (!done) get_invocations(), clear_invocations();
  });
  for (int n = 0; n < 200; ++n) execute<Toy>({.x = x}, {.scale = static_cast<double>(n)});
  done = true;
  other.join();
}

TEST_F(Recorded, fails_no_call_for_want_of_memory) {
  const auto plan = ejk::plan<Toy>({.x = x}, {}, {.platform = Platform::reference});
  const Array y = Array::zeros(DType::f32, {8, 4});
  start_recording(folder / "calls");
  for (int64_t k = 1; k < 200; ++k) {
    fail_new(k);
    EXPECT_NO_THROW(plan.run({.x = x}, {.y = y})) << "the " << k << "th allocation";
    fail_new(0);
  }
  clear_invocations();
  plan.run({.x = x}, {.y = y});
  EXPECT_THAT(counts(), ElementsAre(1));
}

// ---- JSON ----

TEST_F(Recorded, is_a_line_of_json_that_reads_back_as_the_same) {
  start_recording();
  execute<Toy>({.x = Tensor(x.data(), DType::f32, {4, 4}, {8, 1})},
               {.scale = 0.1, .mode = ToyMode::fancy, .window = {3, 0}, .limit = 2.5},
               {.plan = {.platform = Platform::cpu, .backend = Backend::cpu, .kernel = "fast"}});
  execute<MeanPooling>({.x = Array::zeros(DType::bf16, {2, 8}), .cu_seqlens = Array::zeros(DType::i32, {3})});
  std::vector<Invocation> calls = get_invocations();
  for (Invocation& call : calls) call.seconds = 0.25;
  EXPECT_EQ(to_json(calls[0]),
            R"({"operation":"toy","device":"cpu","count":1,"seconds":0.25,"platform":"cpu","backend":"cpu",)"
            R"("kernel":"fast","inputs":[{"name":"x","dtype":"f32","shape":[4,4],"strides":[8,1]}],)"
            R"("params":{"scale":0.1,"shift":0.0,"flip":false,"mode":"fancy","reach":0,"window":[3,0],"limit":2.5}})");
  EXPECT_EQ(to_json(calls[1]),
            R"({"operation":"mean_pooling","device":"cpu","count":1,"seconds":0.25,"inputs":[)"
            R"({"name":"x","dtype":"bf16","shape":[2,8]},)"
            R"({"name":"cu_seqlens","dtype":"i32","shape":[3],"values":[0,0,0]}],"params":{"chunk_size":null}})");
  for (const Invocation& call : calls) EXPECT_EQ(to_json(invocation_from_json(to_json(call))), to_json(call));
}

TEST_F(Recorded, has_defaults_for_what_json_leaves_out) {
  const Invocation call =
      invocation_from_json(R"({"operation": "toy", "inputs": [{"name": "x", "dtype": "f32", "shape": [2, 3]}]})");
  EXPECT_EQ(call.count, 1);
  EXPECT_EQ(call.seconds, 0);
  EXPECT_EQ(call.inputs[0].device, Device());
  EXPECT_EQ(call.inputs[0].strides, (Shape{3, 1}));
  EXPECT_EQ(call.params.as<Toy::Params>().scale, 1);
}

/// The error of a call with this in the place of a good field.
std::string error_of(const std::string& json) {
  try {
    invocation_from_json(json);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "no InvalidArgument";
}
std::string error_with(const std::string& fields) {
  return error_of(R"({"operation": "toy", "inputs": [{"name": "x", "dtype": "f32", "shape": [2, 3]}], )" + fields +
                  "}");
}
std::string error_with_input(const std::string& fields) {
  return error_of(R"({"operation": "toy", "inputs": [{)" + fields + "}]}");
}
std::string error_with_offsets(const std::string& fields) {
  return error_of(R"({"operation": "mean_pooling", "inputs": [{"name": "x", "dtype": "f32", "shape": [2, 3]}, )"
                  R"({"name": "cu_seqlens", "dtype": "i32", "shape": [2], )" +
                  fields + "}]}");
}

TEST_F(Recorded, json_that_is_wrong_names_the_field) {
  EXPECT_EQ(error_of("{"), "recorded call: it must be a JSON object, got a text that is no JSON; see docs/tuning.md");
  EXPECT_THAT(error_of("[]"), HasSubstr("it must be a JSON object, got a JSON array"));
  EXPECT_THAT(error_of("{}"), HasSubstr("operation must be a text, got nothing"));
  EXPECT_THAT(error_of(R"({"operation": "no_such", "inputs": []})"), HasSubstr("no_such"));
  EXPECT_THAT(error_of(R"({"operation": "toy"})"), HasSubstr("inputs must be a list, got nothing"));
  EXPECT_THAT(error_of(R"({"operation": "toy", "inputs": []})"), HasSubstr("toy: x must be given"));
  EXPECT_THAT(error_of(R"({"operation": "toy", "inputs": [7]})"), HasSubstr("an input must be a JSON object, got 7"));
  EXPECT_THAT(error_with(R"("colour": 1)"), HasSubstr("fields must be of operation, device, "));
  EXPECT_THAT(error_with(R"("colour": 1)"), HasSubstr(R"(got "colour")"));
  EXPECT_THAT(error_with(R"("device": "tpu")"), HasSubstr(R"(device must be cpu or cuda:N, got "tpu")"));
  for (const char* count : {"0", "-1", "1.5", "18446744073709551615", "\"many\"", "1e999"})
    EXPECT_THAT(error_with(R"("count": )" + std::string(count)),
                AnyOf(HasSubstr("count must be"), HasSubstr("no JSON")));
  EXPECT_THAT(error_with(R"("seconds": -1)"), HasSubstr("seconds must be from 0 to 1e12, got -1"));
  EXPECT_THAT(error_with(R"("platform": "abacus")"),
              HasSubstr(R"(platform must be the name of a platform, got "abac)"));
  EXPECT_THAT(error_with(R"("params": [])"), HasSubstr("params must be a JSON object, got a JSON array"));
  EXPECT_THAT(error_with(R"("params": {"colour": 1})"), HasSubstr("toy: parameter name colour must be one of"));
  EXPECT_THAT(error_with(R"("params": {"scale": "big"})"), HasSubstr("toy: scale must be of type"));
  EXPECT_THAT(error_with(R"("params": {"limit": -1})"), HasSubstr("toy: limit must be > 0, got -1"));
  EXPECT_THAT(error_with(R"("params": {"window": [1, 2, 3]})"), HasSubstr("toy: window must be"));
  EXPECT_THAT(error_with(R"("params": {"window": {}})"), HasSubstr("parameter window must be a list of integers"));
}

TEST_F(Recorded, json_of_a_tensor_that_is_wrong_names_the_field) {
  EXPECT_THAT(error_with_input(R"("name": "z")"), HasSubstr(R"(an input's name must be one of toy's, got "z")"));
  EXPECT_THAT(error_with_input(R"("name": "x")"), HasSubstr("x dtype must be a text, got nothing"));
  EXPECT_THAT(error_with_input(R"("name": "x", "dtype": "f31")"), HasSubstr("x dtype must be the name of a dtype"));
  const std::string named = R"("name": "x", "dtype": "f32", )";
  EXPECT_THAT(error_with_input(named + R"("data": [1])"), HasSubstr("x fields must be of name, dtype"));
  EXPECT_THAT(error_with_input(named + R"("shape": [1, 1, 1, 1, 1, 1, 1])"),
              HasSubstr("x shape must have no more than 6 numbers, got 7"));
  EXPECT_THAT(error_with_input(named + R"("shape": [2, "3"])"), HasSubstr(R"(x shape must hold integers, got "3")"));
  EXPECT_THAT(error_with_input(named + R"("shape": [-2, 3])"), HasSubstr("toy: x must have extents >= 0"));
  EXPECT_THAT(error_with_input(named + R"("shape": [9223372036854775807, 9223372036854775807])"),
              HasSubstr("toy: x must take less than 2^60 bytes"));
  EXPECT_THAT(error_with_input(named + R"("shape": [2, 3], "strides": [1])"), HasSubstr("toy: x must have 2 strides"));
  EXPECT_THAT(error_with_input(named + R"("shape": [2, 3], "strides": [-9223372036854775808, 1])"),
              HasSubstr("toy: x must reach elements inside the address space"));
  EXPECT_THAT(error_with_input(named + R"("shape": [2], "values": [1, 2])"),
              HasSubstr("x values must be left out but for int32 and int64 tensors on the host"));
  EXPECT_THAT(error_with_offsets(R"("values": [0])"), HasSubstr("cu_seqlens values must be 2 numbers, as its shape"));
  EXPECT_THAT(error_with_offsets(R"("values": [0, 4294967296])"), HasSubstr("values must be integers of 32 bits"));
  EXPECT_EQ(error_with_offsets(R"("values": [-2147483648, 2147483647])"), "no InvalidArgument")
      << "what indices say is for kernels to clamp";
}

TEST_F(Recorded, json_that_means_harm_does_none) {
  const std::string deep(100000, '[');
  EXPECT_THAT(error_with(R"("count": )" + deep), HasSubstr("no JSON"));
  EXPECT_THAT(error_with(R"("count": )" + deep + std::string(deep.size(), ']')), HasSubstr("got a JSON array"));
  EXPECT_LT(error_of(R"({"operation": ")" + std::string(100000, 'a') + "\"}").size(), 500u);
  EXPECT_LT(error_with(R"("params": {")" + std::string(100000, 'a') + "\": 1}").size(), 500u);
  EXPECT_THAT(error_with(R"("params": {"window": [)" + std::string(200000, '1') + "]}"),
              AnyOf(HasSubstr("no JSON"), HasSubstr("hold integers")));
  EXPECT_THAT(error_of(std::string(1 << 21, ' ')), HasSubstr("it must take no more than 1048576 bytes"));
  std::string many = R"({"operation": "toy")";
  for (int n = 0; n < 60000; ++n) many += ", \"f" + std::to_string(n) + "\": 0";
  EXPECT_THAT(error_of(many + "}"), HasSubstr("fields must be of"));
}

// ---- files ----

TEST_F(Recorded, goes_to_the_file_at_the_1st_2nd_4th_time_and_the_rest_when_it_stops) {
  const std::string file = folder / "calls";
  start_recording(file);
  for (int n = 0; n < 7; ++n) execute<Toy>({.x = x});
  execute<Toy>({.x = x}, {.scale = 2});
  EXPECT_EQ(lines_in(file), 4u);
  std::vector<Invocation> loaded = load_invocations(file);
  ASSERT_THAT(loaded, SizeIs(2));
  EXPECT_EQ(loaded[0].count, 4);
  EXPECT_EQ(loaded[1].count, 1);
  EXPECT_GT(loaded[0].seconds, 0);
  stop_recording();
  loaded = load_invocations(file);
  EXPECT_EQ(loaded[0].count, 7);
  EXPECT_NEAR(loaded[0].seconds, get_invocations()[0].seconds, 1e-12);

  clear_invocations();
  start_recording(file);  // as another process would
  execute<Toy>({.x = x});
  EXPECT_EQ(load_invocations(file)[0].count, 8);
}

TEST_F(Recorded, begins_anew_with_every_file) {
  execute<Toy>({.x = x});
  const std::string first = folder / "first", second = folder / "second";
  start_recording();
  for (int n = 0; n < 3; ++n) execute<Toy>({.x = x});
  start_recording(first);
  for (int n = 0; n < 3; ++n) execute<Toy>({.x = x});
  start_recording(second);
  EXPECT_EQ(load_invocations(first)[0].count, 3) << "what the file was not told yet";
  execute<Toy>({.x = x});
  ASSERT_EQ(lines_in(second), 1u) << "its first time for this file";
  EXPECT_EQ(load_invocations(second)[0].count, 1);
  EXPECT_EQ(get_invocations()[0].count, 7);
}

TEST_F(Recorded, tells_a_sample_to_the_file_once) {
  const std::string file = folder / "calls";
  start_recording(file);
  const Array rows = Array::zeros(DType::f32, {1, 2}), cuts = Array::zeros(DType::i32, {2});
  for (int n = 0; n < 4; ++n) execute<MeanPooling>({.x = rows, .cu_seqlens = cuts});
  const std::string text = text_of(file);
  EXPECT_EQ(lines_in(file), 3u);
  EXPECT_EQ(text.find("values"), text.rfind("values"));
  EXPECT_THAT(load_invocations(file)[0].samples[2], ElementsAre(0, 0));
}

TEST_F(Recorded, can_be_saved_and_loaded_whole) {
  start_recording();
  for (int n = 0; n < 3; ++n) execute<Toy>({.x = x});
  execute<Toy>({.x = x}, {.scale = 2});
  const std::vector<Invocation> calls = get_invocations();
  save_invocations(folder / "calls", calls);
  const std::vector<Invocation> loaded = load_invocations(folder / "calls");
  ASSERT_EQ(loaded.size(), calls.size());
  for (size_t i = 0; i < calls.size(); ++i) EXPECT_EQ(to_json(loaded[i]), to_json(calls[i]));
  EXPECT_THAT([&] { save_invocations(folder / "no such folder/calls", calls); },
              ThrowsMessage<InvalidArgument>(HasSubstr("must be a file that can be written")));
}

TEST_F(Recorded, of_a_file_has_a_place_for_each_error_and_forgives_an_unfinished_line) {
  const std::string file = folder / "calls";
  start_recording(file);
  execute<Toy>({.x = x});
  stop_recording();
  const std::string good = text_of(file);
  std::ofstream(file, std::ios::app) << good.substr(0, 20);
  EXPECT_THAT(load_invocations(file), SizeIs(1)) << "whoever wrote it was stopped";
  std::ofstream(folder / "edited") << good << good.substr(0, good.size() - 1);
  EXPECT_EQ(load_invocations(folder / "edited").front().count, 2) << "an editor leaves the last end out";
  std::ofstream(file, std::ios::app) << "\n" << good;
  EXPECT_THAT([&] { load_invocations(file); },
              ThrowsMessage<InvalidArgument>(HasSubstr("calls:2: recorded call: it must be a JSON object")));
  EXPECT_THAT([&] { load_invocations(folder / "none"); },
              ThrowsMessage<InvalidArgument>(HasSubstr("must be a file that can be read, got No such file")));
  EXPECT_THAT([&] { load_invocations(folder.path()); },
              ThrowsMessage<InvalidArgument>(HasSubstr("must be a file that can be read")));
}

TEST_F(Recorded, goes_on_in_memory_when_the_file_cannot_be_written) {
  std::vector<std::string> logged;
  set_log([](LogLevel, const char* text, void* to) { static_cast<std::vector<std::string>*>(to)->emplace_back(text); },
          &logged, LogLevel::warning);
  start_recording(folder / "no such folder/calls");
  for (int n = 0; n < 4; ++n) execute<Toy>({.x = x});
  start_recording(folder / "calls");
  fail_store_call(2);  // opened, not written
  for (int n = 0; n < 4; ++n) execute<Toy>({.x = x});
  EXPECT_EQ(fail_store_call(0), 0);
  EXPECT_THAT(counts(), ElementsAre(8));
  EXPECT_THAT(logged, ElementsAre(AllOf(HasSubstr("recorded calls cannot be written to "), HasSubstr("No such file")),
                                  AllOf(HasSubstr("/calls: "), HasSubstr("they are kept in memory only"))));
}

}  // namespace
}  // namespace ejk::testing
