// Every kernel against PyTorch: two layers in two directions over sequences of their own lengths, and all gradients.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "ejkernel/ops/rnn/rnn.h"
#include "ejkernel/ops/rnn/rnn_torch_goldens.h"
#include "ejkernel/runtime/gradient.h"
#include "ejkernel/testing/values.h"

namespace ejk {
namespace {

constexpr int64_t kBatch = 3, kSteps = 4, kInputs = 3, kHidden = 2, kStates = 4;

double wave(double start, int64_t n) { return std::sin(start + 0.7 * static_cast<double>(n)) / 2; }

Array waves(double start, const Shape& shape) {
  Array a(DType::f32, shape);
  for (int64_t n = 0; n < a.num_elements(); ++n) set(a, n, wave(start, n));
  return a;
}

struct Case {
  std::string kernel, network;
};

class RnnTorch : public ::testing::TestWithParam<Case> {
 protected:
  void expect_near(const std::string& key, const std::vector<double>& got) {
    const std::vector<double>& want = testing::rnn_torch_goldens().at(GetParam().network).at(key);
    ASSERT_EQ(got.size(), want.size()) << key;
    for (size_t n = 0; n < got.size(); ++n)
      EXPECT_NEAR(got[n], want[n], 2e-6 * (1 + std::abs(want[n]))) << key << "[" << n << "]";
  }
};

TEST_P(RnnTorch, agrees) {
  const std::string network = GetParam().network;
  Rnn::Params params = {.cell_type = network == "lstm"  ? CellType::lstm
                                     : network == "gru" ? CellType::gru
                                                        : CellType::rnn,
                        .bidirectional = true,
                        .num_layers = 2};
  if (network == "rnn_relu") params.activation = CellActivation::relu;
  const bool is_lstm = network == "lstm";
  const int64_t rows = num_gates(params.cell_type) * kHidden;
  const std::vector<Array> inputs = {waves(0, {kBatch, kSteps, kInputs}),
                                     waves(6, {kStates, kBatch, kHidden}),
                                     is_lstm ? waves(7, {kStates, kBatch, kHidden}) : Array(),
                                     waves(1, {2, rows, kInputs}),
                                     waves(2, {2, rows, 2 * kHidden}),
                                     waves(3, {kStates, rows, kHidden}),
                                     waves(4, {kStates, rows}),
                                     waves(5, {kStates, rows}),
                                     testing::i32({4, 2, 3})};
  const CallOptions options = {.plan = {.kernel = GetParam().kernel}};
  const std::vector<Tensor> views(inputs.begin(), inputs.end());
  const std::vector<Array> outputs = execute("rnn", views, ParamsBlock::of(params), options);
  expect_near("out", testing::values_of(outputs[0]));
  expect_near("final_hidden", testing::values_of(outputs[1]));
  if (is_lstm) expect_near("final_cell", testing::values_of(outputs[2]));

  std::vector<Array> cotangents;
  for (size_t o = 0; o < outputs.size(); ++o)
    cotangents.push_back(outputs[o].present() ? waves(8 + static_cast<double>(o), outputs[o].shape()) : Array());
  const ForwardCall forward = {.operation = "rnn",
                               .inputs = views,
                               .params = ParamsBlock::of(params),
                               .outputs = {outputs.begin(), outputs.end()}};
  const std::vector<Tensor> given(cotangents.begin(), cotangents.end());
  const std::vector<Array> gradients = pull_back(forward, given, options);
  const Operation& backward = operation<RnnBackward>();
  for (size_t g = 0; g < gradients.size(); ++g) {
    if (!gradients[g].present()) continue;
    double sum = 0;
    for (int64_t n = 0; n < gradients[g].num_elements(); ++n) sum += wave(9, n) * get(gradients[g], n);
    expect_near("d_" + std::string(backward.outputs[g].name), {sum});
  }
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const char* kernel : {"cpu", "reference"})
    for (const auto& [network, values] : testing::rnn_torch_goldens()) all.push_back({kernel, network});
  return all;
}

INSTANTIATE_TEST_SUITE_P(Networks, RnnTorch, ::testing::ValuesIn(cases()),
                         [](const auto& info) { return info.param.kernel + "_" + info.param.network; });

}  // namespace
}  // namespace ejk
