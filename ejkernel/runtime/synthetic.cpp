#include "ejkernel/runtime/synthetic.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "ejkernel/core/random_internal.h"
#include "ejkernel/core/validate.h"
#include "ejkernel/runtime/devices.h"
#include "ejkernel/runtime/executor.h"
#include "ejkernel/runtime/registry.h"

namespace ejk {
namespace {

/// Every element of the memory that a tensor spans, in any order, drawn from a table of `value()`s in its dtype: large
/// tensors are filled at the speed of memory.
template <class Value>
void fill_from_table(const Tensor& t, Random& random, Value&& value) {
  constexpr int64_t kTable = 4096;
  const Array table(t.dtype, {kTable});
  for (int64_t i = 0; i < kTable; ++i) set(table, i, value());
  const auto [first, last] = element_range(t);
  const auto size = static_cast<size_t>(bits(t.dtype) / 8);
  auto* at = t.as<std::byte>() + first * static_cast<int64_t>(size);
  for (int64_t n = first; n < last; ++n, at += size)
    std::memcpy(at, table.as<const std::byte>() + (random.bits() % kTable) * size, size);
}

/// Whether the input is a factor of another one's elements. That of queries is one of the logits.
bool is_scale(std::string_view name) { return name.ends_with("scale") && name != "q_scale"; }

/// What integer codes of the call are multiplied by so that their values are near 1; 1: nothing is, they are the
/// values.
double code_unit_of(const Operation& operation, std::span<const Tensor> inputs) {
  bool has_i8 = false, has_i4 = false, has_scale = false;
  for (size_t i = 0; i < inputs.size(); ++i) {
    has_i8 = has_i8 || inputs[i].dtype == DType::i8;
    has_i4 = has_i4 || inputs[i].dtype == DType::i4;
    has_scale = has_scale || (inputs[i].present() && is_scale(operation.inputs[i].name));
  }
  if (!has_scale) return 1;
  return has_i8 ? 1 / 58.0 : has_i4 ? 1 / 4.3 : 1;  // one over the root mean square of codes as below
}

/// One input, by what its name says of its numbers.
class Filler {
 public:
  Filler(const Tensor& tensor, std::string_view name, const Dims& dims, double code_unit, uint64_t seed)
      : t_(tensor), name_(name), dims_(dims), code_unit_(code_unit), random_(seed) {}

  void run() {
    if (t_.dtype == DType::boolean) return each([&](int64_t) { return random_.uniform() < 0.9 ? 1 : 0; });
    if (t_.dtype == DType::i8 || t_.dtype == DType::i4) {
      const int most = code_unit_ == 1 ? 2 : t_.dtype == DType::i8 ? 100 : 7;
      const auto code = [&] { return static_cast<double>(random_.between(-most, most)); };
      return t_.dtype == DType::i8 ? fill_from_table(t_, random_, code) : each([&](int64_t) { return code(); });
    }
    if (name_ == "lse") {  // of the logits that normal queries and keys have
      const double typical = std::log(static_cast<double>(std::max<int64_t>(length_bound(), 1))) + 0.5;
      return fill_from_table(t_, random_, [&] { return typical + 0.1 * random_.normal(); });
    }
    if (name_ == "g" || name_ == "gk" || name_ == "gv" ||
        name_ == "g_gamma")  // decays of 0.9 to 1: states stay in range
      return fill_from_table(t_, random_, [&] { return -0.1 * random_.uniform(); });
    if (name_.starts_with("weight_")) {  // states of a recurrent network do not grow step by step, whatever its size
      const double size = 1 / std::sqrt(static_cast<double>(std::max<int64_t>(t_.shape[-1], 1)));
      return fill_from_table(t_, random_, [&] { return size * (2 * random_.uniform() - 1); });
    }
    if (is_float(t_.dtype)) {
      const double unit = is_scale(name_) ? code_unit_ : 1;
      const bool is_near_unit = name_.ends_with("scale");
      return fill_from_table(t_, random_,
                             [&] { return is_near_unit ? unit * (0.5 + random_.uniform()) : random_.normal(); });
    }
    if (name_.starts_with("cu_") || name_ == "query_start_loc") return fill_offsets();
    if (name_ == "group_sizes") return fill_sizes();
    if (name_ == "block_tables") return fill_pages();
    if (name_ == "context_lens") return each([&](int64_t) { return capacity(); });
    if (name_ == "num_seqs" || name_ == "distribution")  // all sequences are in use, and any row of them may be new
      return each([&](int64_t n) { return n + 1 == t_.num_elements() ? dim("max_num_seqs") : 0; });
    if (name_.ends_with("_start")) return each([](int64_t) { return 0; });
    if (name_.find("segment") != std::string_view::npos)
      return each([&](int64_t n) { return 4 * (n % t_.shape[-1]) / t_.shape[-1]; });
    if (name_.find("seq") != std::string_view::npos) return each([&](int64_t) { return length_bound(); });
    each([&](int64_t) { return random_.between(0, (1 << 16) - 1); });
  }

 private:
  template <class F>
  void each(F&& value) {
    for (int64_t n = 0; n < t_.num_elements(); ++n) set(t_, n, static_cast<double>(value(n)));
  }

  /// 0 where the call has no such dimension.
  int64_t dim(std::string_view name) const {
    const Dims::Entry* found = dims_.find(name);
    return found == nullptr ? 0 : found->value;
  }

  /// The rows that offsets cut up: `total_q` for cu_seqlens_q, or the number of tokens.
  int64_t total() const {
    for (const Dims::Entry& dim : dims_.entries())
      if (dim.name.starts_with("total_") && name_.back() == dim.name.back()) return dim.value;
    return std::max(dim("num_tokens"), dim("total_tokens"));
  }

  /// Sorted random cuts of `rows`, the first at 0 and the last at the end.
  std::vector<int64_t> cuts_of(int64_t rows, int64_t count) {
    std::vector<int64_t> cuts(static_cast<size_t>(count));
    if (cuts.empty()) return cuts;
    for (int64_t& cut : cuts) cut = random_.between(0, rows);
    std::sort(cuts.begin(), cuts.end());
    cuts.front() = 0;
    cuts.back() = rows;
    return cuts;
  }
  void fill_offsets() {
    const std::vector<int64_t> cuts = cuts_of(total(), t_.num_elements());
    each([&](int64_t n) { return cuts[static_cast<size_t>(n)]; });
  }
  /// Sizes that add up to the number of rows.
  void fill_sizes() {
    const std::vector<int64_t> cuts = cuts_of(dim("m"), t_.num_elements() + 1);
    each([&](int64_t n) { return cuts[static_cast<size_t>(n) + 1] - cuts[static_cast<size_t>(n)]; });
  }

  /// Pages in random order, each once before any comes again.
  void fill_pages() {
    std::vector<int64_t> pages(static_cast<size_t>(dim("num_pages")));
    if (pages.empty()) return each([](int64_t) { return -1; });
    for (size_t n = 0; n < pages.size(); ++n) pages[n] = static_cast<int64_t>(n);
    for (size_t n = pages.size(); n > 1; --n) std::swap(pages[n - 1], pages[random_.bits() % n]);
    each([&](int64_t n) { return pages[static_cast<size_t>(n) % pages.size()]; });
  }
  /// Tokens that a row of the table has room for.
  int64_t capacity() const {
    const int64_t flat = dim("table_num_pages"), sequences = std::max<int64_t>(dim("max_num_seqs"), 1);
    return (flat > 0 ? flat / sequences : dim("max_num_pages")) * dim("page_size");
  }

  /// The longest a sequence may be.
  int64_t length_bound() const {
    const std::string_view dim = name_.starts_with("q") ? "q_len" : "kv_len";
    if (const Dims::Entry* found = dims_.find(dim)) return found->value;
    return total();
  }

  const Tensor& t_;
  std::string_view name_;
  const Dims& dims_;
  double code_unit_;
  Random random_;
};

/// The operation that this one is the gradient of; null for any other.
const Operation* forward_of(const Operation& gradient) {
  const KernelRegistry& registry = KernelRegistry::instance();
  for (const std::string& name : registry.names())
    if (const Operation* op = registry.find(name)->declaration; op->gradient == gradient.name) return op;
  return nullptr;
}

}  // namespace

SyntheticInputs make_synthetic_inputs(const Operation& operation, std::span<const Tensor> inputs,
                                      const ParamsBlock& params, uint64_t seed) {
  const CheckedCall checked = check_call(operation, inputs, params);
  const double code_unit = code_unit_of(operation, inputs);
  SyntheticInputs made{.tensors = {inputs.begin(), inputs.end()}, .memory = {}};
  for (size_t i = 0; i < inputs.size(); ++i) {
    Tensor& t = made.tensors[i];
    if (!t.present()) continue;
    const auto [first, last] = byte_range(t);
    const Array& memory = made.memory.emplace_back(DType::u8, Shape{last - first});
    t.device = {};
    t.data = memory.as<std::byte>() - first;
    // Offsets of queries and keys share their draws, so that equal totals mean self-attention.
    const bool offsets = operation.inputs[i].name.starts_with("cu_");
    Filler(t, operation.inputs[i].name, checked.dims, code_unit, seed * 64 + (offsets ? 63 : i)).run();
  }
  fill_kept_gates(operation, made.tensors, params);
  return made;
}

void fill_kept_gates(const Operation& gradient, std::span<const Tensor> inputs, const ParamsBlock& params) {
  const int gates = find_input(gradient, "gates");
  if (gates < 0 || !inputs[static_cast<size_t>(gates)].present()) return;
  const Operation* forward = forward_of(gradient);
  if (forward == nullptr) return;
  std::vector<Tensor> taken;
  for (const TensorField& field : forward->inputs)
    taken.push_back(inputs[static_cast<size_t>(find_input(gradient, field.name))]);
  ParamsBlock same = forward->default_params;
  for (const ParamField& field : forward->params)
    for (const ParamField& known : gradient.params)
      if (known.name == field.name) field.set(same.data(), known.get(params.data()));
  const CallOptions by_heuristics = {.plan = {.policy = Policy{.autotune = false, .heuristics = true}}};
  const std::vector<Array> outputs = execute(forward->name, taken, same, by_heuristics);
  const Tensor kept = outputs[static_cast<size_t>(find_output(*forward, "gates"))];
  const Tensor& t = inputs[static_cast<size_t>(gates)];
  for (int64_t n = 0; n < t.num_elements(); ++n) set(t, n, get(kept, n));
}

bool have_data(std::span<const Tensor> inputs) {
  return std::all_of(inputs.begin(), inputs.end(),
                     [](const Tensor& t) { return t.num_elements() == 0 || t.data != nullptr; });
}

double most_copied_bytes() { return free_host_bytes() / 4; }

double synthetic_bytes(std::span<const Tensor> inputs) {
  double bytes = 0;
  for (const Tensor& t : inputs) {
    const auto [first, last] = byte_range(t);
    bytes += static_cast<double>(last) - static_cast<double>(first);
  }
  return bytes;
}

void fill_normal(const Tensor& tensor, uint64_t seed) {
  Random random(seed);
  fill_from_table(tensor, random, [&] { return random.normal(); });
}

}  // namespace ejk
