#include "ejkernel/core/sequence.h"

#include <algorithm>
#include <limits>
#include <span>
#include <string>
#include <string_view>

#include "ejkernel/core/validate.h"

namespace ejk {
namespace {

constexpr int64_t kMaxTokens = std::numeric_limits<int32_t>::max();
constexpr int32_t kNone = -1;  // the id of a row that no sequence owns

using Ints = std::span<int32_t>;

Ints ints(const Array& array) { return {array.as<int32_t>(), static_cast<size_t>(array.num_elements())}; }

Array filled(int64_t count, int32_t value) {
  Array array(DType::i32, {count});
  std::fill_n(array.as<int32_t>(), count, value);
  return array;
}

int32_t narrow(int64_t value) { return static_cast<int32_t>(value); }

std::string at(std::string_view what, size_t index, int64_t value) {
  return std::string(what) + "[" + std::to_string(index) + "] = " + std::to_string(value);
}

/// "x[3] = 5 after 7", for orders that are broken.
std::string after(std::string_view what, Ints values, size_t index) {
  return at(what, index, values[index]) + (index > 0 ? " after " + std::to_string(values[index - 1]) : "");
}

/// A contiguous host copy of an argument, of the one dtype and rank that it must have.
Array read(std::string_view operation, std::string_view argument, const Tensor& tensor, DType dtype, int rank) {
  if (!tensor.present() || tensor.dtype != dtype || tensor.rank() != rank || tensor.device.kind != DeviceKind::cpu)
    throw_invalid(operation, argument,
                  "be " + std::string(name(dtype)) + " of rank " + std::to_string(rank) + " in host memory",
                  to_string(tensor) + " on " + to_string(tensor.device), "convert or copy it first");
  return contiguous(tensor);
}

void check_range(std::string_view operation, std::string_view argument, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return;
  throw_invalid(operation, argument, "be from " + std::to_string(low) + " to " + std::to_string(high),
                std::to_string(value), "correct it");
}

/// Lengths, checked: none negative, and a sum that int32 offsets can hold.
Array read_lengths(std::string_view operation, const Tensor& tensor) {
  Array array = read(operation, "lengths", tensor, DType::i32, 1);
  const Ints lengths = ints(array);
  int64_t sum = 0;
  for (size_t n = 0; n < lengths.size(); ++n) {
    if (lengths[n] < 0)
      throw_invalid(operation, "lengths", "not be negative", at("lengths", n, lengths[n]),
                    "use 0 for an empty sequence");
    sum += lengths[n];
  }
  if (sum > kMaxTokens)
    throw_invalid(operation, "lengths", "add up to at most " + std::to_string(kMaxTokens), std::to_string(sum),
                  "split the batch");
  return array;
}

/// Offsets of the sequences and the end of the last, checked: from 0 to at most `num_tokens`, never falling.
Array read_offsets(std::string_view operation, const Tensor& tensor, int64_t num_tokens) {
  check_range(operation, "num_tokens", num_tokens, 0, kMaxTokens);
  Array array = read(operation, "cu_seqlens", tensor, DType::i32, 1);
  const Ints offsets = ints(array);
  if (offsets.empty() || offsets[0] != 0)
    throw_invalid(operation, "cu_seqlens", "begin with 0",
                  offsets.empty() ? "no elements" : at("cu_seqlens", 0, offsets[0]),
                  "put a 0 in front of the ends of the sequences");
  const auto fall = std::is_sorted_until(offsets.begin(), offsets.end());
  if (fall != offsets.end())
    throw_invalid(operation, "cu_seqlens", "never fall",
                  after("cu_seqlens", offsets, static_cast<size_t>(fall - offsets.begin())), "sum the lengths up");
  if (offsets.back() > num_tokens)
    throw_invalid(operation, "cu_seqlens", "end at or before the last of the " + std::to_string(num_tokens) + " tokens",
                  std::to_string(offsets.back()), "give all tokens or drop sequences");
  return array;
}

/// Sequence ids, checked: none below −1, never falling, −1 only after all others.
Array read_sequence_ids(std::string_view operation, const Tensor& tensor, int64_t num_sequences) {
  Array array = read(operation, "sequence_ids", tensor, DType::i32, 1);
  const Ints ids = ints(array);
  int32_t previous = 0;
  for (size_t t = 0; t < ids.size(); ++t) {
    const bool in_order = previous != kNone && ids[t] >= previous && ids[t] < num_sequences;
    if (ids[t] != kNone && !in_order)
      throw_invalid(operation, "sequence_ids",
                    "rise from 0 to at most " + std::to_string(num_sequences - 1) + ", with -1 at the end only",
                    after("sequence_ids", ids, t), "sort the tokens by sequence");
    previous = ids[t];
  }
  return array;
}

/// Calls visit(row, sequence, place inside the sequence) for each row that a sequence owns.
template <class Visit>
void for_each_row(Ints offsets, Visit visit) {
  for (size_t n = 0; n + 1 < offsets.size(); ++n)
    for (int32_t row = offsets[n]; row < offsets[n + 1]; ++row)
      visit(static_cast<size_t>(row), narrow(static_cast<int64_t>(n)), row - offsets[n]);
}

int64_t num_chunks(int64_t length, int64_t chunk_size) { return length / chunk_size + (length % chunk_size != 0); }

Array chunk_offsets(Ints offsets, int64_t chunk_size) {
  Array chunks = filled(static_cast<int64_t>(offsets.size()), 0);
  for (size_t n = 1; n < offsets.size(); ++n)
    ints(chunks)[n] = ints(chunks)[n - 1] + narrow(num_chunks(offsets[n] - offsets[n - 1], chunk_size));
  return chunks;
}

/// What the sums along one axis have in common.
struct Cumsum {
  std::string_view operation;
  Ints offsets;
  int64_t chunk_size;
  bool reverse;

  double rounded(double sum, double) const { return sum; }
  float rounded(double sum, float) const { return static_cast<float>(sum); }
  int32_t rounded(int64_t sum, int32_t) const {
    if (sum < std::numeric_limits<int32_t>::min() || sum > std::numeric_limits<int32_t>::max())
      throw_invalid(operation, "values", "have sums that fit i32", std::to_string(sum), "convert them to f64");
    return narrow(sum);
  }

  /// Sums the rows from `begin` to `end` of a column of elements `stride` apart, in place.
  template <class Sum, class T>
  void sum_rows(T* column, int64_t stride, int64_t begin, int64_t end) const {
    Sum sum = 0;
    for (int64_t i = 0; i < end - begin; ++i) {
      T& value = column[(reverse ? end - 1 - i : begin + i) * stride];
      sum += value;
      value = rounded(sum, T{});
    }
  }

  template <class Sum, class T>
  void sum_column(T* column, int64_t stride) const {
    for (size_t n = 0; n + 1 < offsets.size(); ++n)
      for (int64_t begin = offsets[n]; begin < offsets[n + 1]; begin += chunk_size)
        sum_rows<Sum>(column, stride, begin, std::min<int64_t>(begin + chunk_size, offsets[n + 1]));
  }

  template <class Sum, class T>
  void sum_along(const Array& values, int axis) const {
    const int64_t length = values.shape()[axis];
    const int64_t stride = values.view().strides[axis];
    for (int64_t outer = 0; outer < values.num_elements() / (length * stride); ++outer) {
      T* block = values.as<T>() + outer * length * stride;
      for (int64_t inner = 0; inner < stride; ++inner) sum_column<Sum>(block + inner, stride);
      std::fill(block + offsets.back() * stride, block + length * stride, T{0});
    }
  }
};

Array cumsum(std::string_view operation, const Tensor& values, int axis, int64_t chunk_size,
             const CumsumOptions& options) {
  const DType dtype = values.dtype;
  const bool summable = dtype == DType::f32 || dtype == DType::f64 || dtype == DType::i32;
  if (!values.present() || !summable || values.device.kind != DeviceKind::cpu)
    throw_invalid(operation, "values", "be f32, f64 or i32 in host memory",
                  to_string(values) + " on " + to_string(values.device), "convert or copy them first");
  if (values.rank() == 0)
    throw_invalid(operation, "values", "have an axis to sum along", to_string(values), "reshape them to [1]");
  check_range(operation, "axis", axis, -values.rank(), values.rank() - 1);
  check_range(operation, "chunk_size", chunk_size, 1, kMaxTokens);
  if (axis < 0) axis += values.rank();
  const int64_t length = values.shape[axis];
  check_range(operation, "the length of that axis", length, 0, kMaxTokens);

  Array offsets = filled(2, 0);
  ints(offsets)[1] = narrow(length);
  if (options.cu_seqlens.present()) offsets = read_offsets(operation, options.cu_seqlens, length);
  Array sums = contiguous(values);
  if (sums.num_elements() == 0) return sums;
  const Cumsum job = {operation, ints(offsets), chunk_size, options.reverse};
  if (dtype == DType::f32) job.sum_along<double, float>(sums, axis);
  if (dtype == DType::f64) job.sum_along<double, double>(sums, axis);
  if (dtype == DType::i32) job.sum_along<int64_t, int32_t>(sums, axis);
  return sums;
}

}  // namespace

Array cu_seqlens_from_lengths(const Tensor& lengths) {
  const Array read = read_lengths("cu_seqlens_from_lengths", lengths);
  Array offsets = filled(read.num_elements() + 1, 0);
  for (size_t n = 0; n < ints(read).size(); ++n) ints(offsets)[n + 1] = ints(offsets)[n] + ints(read)[n];
  return offsets;
}

Array lengths_from_cu_seqlens(const Tensor& cu_seqlens) {
  const Array offsets = read_offsets("lengths_from_cu_seqlens", cu_seqlens, kMaxTokens);
  Array lengths = filled(offsets.num_elements() - 1, 0);
  for (size_t n = 0; n < ints(lengths).size(); ++n) ints(lengths)[n] = ints(offsets)[n + 1] - ints(offsets)[n];
  return lengths;
}

Array mask_from_lengths(const Tensor& lengths, int64_t max_length) {
  constexpr std::string_view kOperation = "mask_from_lengths";
  check_range(kOperation, "max_length", max_length, 0, kMaxTokens);
  const Array counts = read_lengths(kOperation, lengths);
  Array mask = Array::zeros(DType::boolean, {counts.num_elements(), max_length});
  for (size_t n = 0; n < ints(counts).size(); ++n) {
    const int32_t count = ints(counts)[n];
    if (count > max_length)
      throw_invalid(kOperation, "lengths", "be at most max_length " + std::to_string(max_length),
                    at("lengths", n, count), "raise max_length or cut the sequence");
    std::fill_n(mask.as<uint8_t>() + static_cast<int64_t>(n) * max_length, count, uint8_t{1});
  }
  return mask;
}

Array lengths_from_mask(const Tensor& mask) {
  constexpr std::string_view kOperation = "lengths_from_mask";
  const Array rows = read(kOperation, "mask", mask, DType::boolean, 2);
  const int64_t width = rows.shape()[1];
  check_range(kOperation, "the width of mask", width, 0, kMaxTokens);
  Array lengths = filled(rows.shape()[0], 0);
  for (size_t n = 0; n < ints(lengths).size(); ++n) {
    const uint8_t* row = rows.as<uint8_t>() + static_cast<int64_t>(n) * width;
    const uint8_t* end = std::find(row, row + width, 0);
    const uint8_t* late = std::find_if(end, row + width, [](uint8_t visible) { return visible != 0; });
    const auto place = [&](const uint8_t* p) { return "[" + std::to_string(n) + ", " + std::to_string(p - row) + "]"; };
    if (late != row + width)
      throw_invalid(kOperation, "mask", "be true for the first positions of each row and false after",
                    "true at " + place(late) + " after false at " + place(end), "use segment ids for masks with holes");
    ints(lengths)[n] = narrow(end - row);
  }
  return lengths;
}

Array sequence_ids_from_cu_seqlens(const Tensor& cu_seqlens, int64_t num_tokens) {
  const Array offsets = read_offsets("sequence_ids_from_cu_seqlens", cu_seqlens, num_tokens);
  Array ids = filled(num_tokens, kNone);
  for_each_row(ints(offsets), [&](size_t t, int32_t sequence, int32_t) { ints(ids)[t] = sequence; });
  return ids;
}

Array position_ids_from_cu_seqlens(const Tensor& cu_seqlens, int64_t num_tokens) {
  const Array offsets = read_offsets("position_ids_from_cu_seqlens", cu_seqlens, num_tokens);
  Array positions = filled(num_tokens, kNone);
  for_each_row(ints(offsets), [&](size_t t, int32_t, int32_t position) { ints(positions)[t] = position; });
  return positions;
}

Array cu_seqlens_from_sequence_ids(const Tensor& sequence_ids, int64_t num_sequences) {
  constexpr std::string_view kOperation = "cu_seqlens_from_sequence_ids";
  check_range(kOperation, "num_sequences", num_sequences, 0, kMaxTokens);
  const Array ids = read_sequence_ids(kOperation, sequence_ids, num_sequences);
  check_range(kOperation, "the number of tokens", ids.num_elements(), 0, kMaxTokens);
  Array offsets = filled(num_sequences + 1, 0);
  for (int32_t id : ints(ids))
    if (id != kNone) ++ints(offsets)[static_cast<size_t>(id) + 1];
  for (size_t n = 1; n < ints(offsets).size(); ++n) ints(offsets)[n] += ints(offsets)[n - 1];
  return offsets;
}

Array position_ids_from_sequence_ids(const Tensor& sequence_ids) {
  const Array read = read_sequence_ids("position_ids_from_sequence_ids", sequence_ids, kMaxTokens);
  const Ints ids = ints(read);
  Array positions = filled(read.num_elements(), kNone);
  for (size_t t = 0; t < ids.size() && ids[t] != kNone; ++t)
    ints(positions)[t] = t > 0 && ids[t] == ids[t - 1] ? ints(positions)[t - 1] + 1 : 0;
  return positions;
}

Array sequence_ids_from_position_ids(const Tensor& position_ids) {
  constexpr std::string_view kOperation = "sequence_ids_from_position_ids";
  const Array read_positions = read(kOperation, "position_ids", position_ids, DType::i32, 1);
  const Ints positions = ints(read_positions);
  Array ids = filled(read_positions.num_elements(), kNone);
  int32_t sequence = kNone;
  for (size_t t = 0; t < positions.size() && positions[t] != kNone; ++t) {
    if (positions[t] == 0) ++sequence;
    const bool goes_on = t > 0 && positions[t - 1] + 1 == positions[t];
    if (positions[t] != 0 && !goes_on)
      throw_invalid(kOperation, "position_ids", "count up from 0 in each sequence", after("position_ids", positions, t),
                    "give the packed sequences one after another");
    ints(ids)[t] = sequence;
  }
  const auto end = std::find(positions.begin(), positions.end(), kNone);
  const auto late = std::find_if(end, positions.end(), [](int32_t position) { return position != kNone; });
  if (late != positions.end())
    throw_invalid(kOperation, "position_ids", "have -1 at the end only",
                  after("position_ids", positions, static_cast<size_t>(late - positions.begin())),
                  "give the packed sequences one after another");
  return ids;
}

Array chunk_ids_from_cu_seqlens(const Tensor& cu_seqlens, int64_t chunk_size, int64_t num_tokens) {
  constexpr std::string_view kOperation = "chunk_ids_from_cu_seqlens";
  check_range(kOperation, "chunk_size", chunk_size, 1, kMaxTokens);
  const Array offsets = read_offsets(kOperation, cu_seqlens, num_tokens);
  const Array chunks = chunk_offsets(ints(offsets), chunk_size);
  const int64_t num_sequences = offsets.num_elements() - 1;
  Array ids(DType::i32, {num_chunks(num_tokens, chunk_size) + num_sequences, 2});
  std::fill(ints(ids).begin(), ints(ids).end(), kNone);
  for_each_row(ints(chunks), [&](size_t row, int32_t sequence, int32_t chunk) {
    ints(ids)[2 * row] = sequence;
    ints(ids)[2 * row + 1] = chunk;
  });
  return ids;
}

Array chunk_offsets_from_cu_seqlens(const Tensor& cu_seqlens, int64_t chunk_size) {
  constexpr std::string_view kOperation = "chunk_offsets_from_cu_seqlens";
  check_range(kOperation, "chunk_size", chunk_size, 1, kMaxTokens);
  return chunk_offsets(ints(read_offsets(kOperation, cu_seqlens, kMaxTokens)), chunk_size);
}

Array global_cumsum(const Tensor& values, int axis, const CumsumOptions& options) {
  return cumsum("global_cumsum", values, axis, kMaxTokens, options);
}

Array local_cumsum(const Tensor& values, int axis, int64_t chunk_size, const CumsumOptions& options) {
  return cumsum("local_cumsum", values, axis, chunk_size, options);
}

}  // namespace ejk
