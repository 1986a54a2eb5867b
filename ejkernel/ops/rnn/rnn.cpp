#include "ejkernel/ops/rnn/rnn.h"

#include <string>

#include "ejkernel/core/validate.h"
#include "ejkernel/ops/rnn/rnn_internal.h"

namespace ejk {
namespace {

/// A dimension that others decide, which a tensor has bound already or nobody has.
void require_dim(std::string_view op, Dims& dims, std::string_view name, int64_t expected, const std::string& meaning) {
  const Dims::Entry* entry = dims.find(name);
  if (entry == nullptr) return dims.bind(name, expected);
  if (entry->value != expected)
    throw_invalid(op, std::string(entry->bound_by) + " " + std::string(name),
                  "equal " + meaning + " = " + std::to_string(expected), std::to_string(entry->value),
                  "check cell_type, num_layers and bidirectional");
}

void check_dims(std::string_view op, const Rnn::Inputs& in, const Rnn::Params& params, Dims& dims) {
  if (params.cell_type != CellType::rnn && params.activation != CellActivation::tanh)
    throw_invalid(op, "activation", "be left at tanh unless cell_type is rnn",
                  name_in(enum_names(params.activation), params.activation), "gates of gru and lstm are fixed");
  const int64_t directions = params.bidirectional ? 2 : 1, hidden_size = dims["hidden_size"];
  if (params.num_layers > 1024)
    throw_invalid(op, "num_layers", "be at most 1024", std::to_string(params.num_layers), "pass as many as there are");
  const int64_t gates = num_gates(params.cell_type);
  require_dim(op, dims, "num_directions", directions, "1, or 2 when bidirectional");
  require_dim(op, dims, "num_states", params.num_layers * directions, "num_layers * num_directions");
  require_dim(op, dims, "gate_rows", gates * hidden_size, std::to_string(gates) + " * hidden_size");
  if (params.num_layers == 1 && in.weight_ih_upper.present())
    throw_invalid(op, "weight_ih_upper", "be left out with one layer", to_string(in.weight_ih_upper),
                  "leave it out, or raise num_layers");
  if (params.num_layers > 1 && !in.weight_ih_upper.present())
    throw_invalid(op, "weight_ih_upper", "be given with several layers", "nothing",
                  "pass W_ih of all layers but the first");
  require_dim(op, dims, "num_upper", (params.num_layers - 1) * directions, "(num_layers - 1) * num_directions");
  require_dim(op, dims, "kept_size", rnns::num_slots(params.cell_type) * hidden_size, "what is kept of the gates");
  require_dim(op, dims, "layer_size", directions * hidden_size, "num_directions * hidden_size");
  for (const auto& [name, t] : {std::pair{"hidden", in.hidden}, std::pair{"cell", in.cell}})
    if (t.present() && t.rank() == 2 && dims["num_states"] != 1)
      throw_invalid(op, name, "have an axis of states where there are " + std::to_string(dims["num_states"]),
                    to_string(t), "pass [num_states, batch, hidden_size]");
}

/// Multiply-adds of the forward, two operations each: elementwise work is small beside them.
double forward_flops(const Rnn::Inputs& in, const Rnn::Params& params) {
  const rnns::Problem p = rnns::make_problem(in, params);
  double columns = 0;
  for (int64_t layer = 0; layer < std::min<int64_t>(p.num_layers, 2); ++layer)
    columns +=
        static_cast<double>(p.input_of(layer) + p.hidden_size) * static_cast<double>(layer == 0 ? 1 : p.num_layers - 1);
  return 2 * static_cast<double>(p.batch * p.seq_len) * static_cast<double>(p.num_directions * p.gate_rows()) * columns;
}

}  // namespace

void Rnn::check(const Inputs& in, const Params& params, Dims& dims) { check_dims(kName, in, params, dims); }

Work Rnn::work(const Call<Rnn>& call) {
  return {.flops = forward_flops(call.inputs, call.params),
          .bytes = bytes_of(to_array(call.inputs)) + bytes_of(to_array(call.outputs))};
}

std::span<const KernelInfo* const> Rnn::kernels() {
  using namespace rnn_kernels;
  static const KernelInfo* const list[] = {&cpu(), &cuda_reference(), &reference()};
  return list;
}

void RnnBackward::check(const Inputs& in, const Params& params, Dims& dims) { check_dims(kName, in, params, dims); }

Work RnnBackward::work(const Call<RnnBackward>& call) {
  return {.flops = 3 * forward_flops(call.inputs, call.params),  // the forward again, and two products per product
          .bytes = bytes_of(to_array(call.inputs)) + bytes_of(to_array(call.outputs))};
}

std::span<const KernelInfo* const> RnnBackward::kernels() {
  using namespace rnn_kernels;
  static const KernelInfo* const list[] = {&backward_cpu(), &backward_cuda_reference(), &backward_reference()};
  return list;
}

namespace rnns {

View view_of(const Tensor& t) {
  View view;
  if (!t.present()) return view;
  view = {.data = t.data, .dtype = t.dtype};
  if (t.rank() >= 2) view.inner = t.strides[t.rank() - 2];
  if (t.rank() >= 3) view.outer = t.strides[0];
  return view;
}

View gates_of(const Tensor& gates, int64_t state) {
  if (!gates.present()) return {};
  View view = {.data = gates.data, .dtype = gates.dtype, .outer = gates.strides[1], .inner = gates.strides[2]};
  if (gates.num_elements() > 0) view.data = view.address(state * gates.strides[0]);
  return view;
}

Problem make_problem(const Rnn::Inputs& in, const Rnn::Params& params) {
  Problem p;
  p.cell_type = params.cell_type, p.activation = params.activation;
  p.batch = in.input.shape[0], p.seq_len = in.input.shape[1], p.input_size = in.input.shape[2];
  p.hidden_size = in.weight_hh.shape[2];
  p.num_layers = params.num_layers, p.num_directions = params.bidirectional ? 2 : 1;
  p.dtype = in.input.dtype;
  p.input = view_of(in.input), p.hidden = view_of(in.hidden), p.cell = view_of(in.cell);
  p.weights = {.ih = view_of(in.weight_ih),
               .ih_upper = view_of(in.weight_ih_upper),
               .hh = view_of(in.weight_hh),
               .bias_ih = view_of(in.bias_ih),
               .bias_hh = view_of(in.bias_hh),
               .num_directions = p.num_directions};
  p.lengths = in.lengths;
  return p;
}

Gradients make_gradients(const RnnBackward::Outputs& out, const RnnBackward::Params& params) {
  Gradients g;
  g.input = view_of(out.input), g.hidden = view_of(out.hidden), g.cell = view_of(out.cell);
  g.weights = {.ih = view_of(out.weight_ih),
               .ih_upper = view_of(out.weight_ih_upper),
               .hh = view_of(out.weight_hh),
               .bias_ih = view_of(out.bias_ih),
               .bias_hh = view_of(out.bias_hh),
               .num_directions = params.bidirectional ? 2 : 1};
  return g;
}

}  // namespace rnns
}  // namespace ejk
