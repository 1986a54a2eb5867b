// The contract grammar: what a tensor argument must look like, written as text, parsed by the compiler.
//
//   contract    := form (' ; ' form)*              one per form of the operation, or one for all of them
//   form        := '-' | alternative (' | ' alternative)*     '-': not accepted in this form
//   alternative := dtypes ['&'] ['?'] '[' dim (', ' dim)* ']'
//   dtypes      := a class (below), a dtype name, or '@field' (the dtype of that input);
//                  also 'result@field' (bf16 when the field is 8-bit; the parameter `out_dtype` overrides),
//                  'stats@field' (f64 for f64, else f32) and 'state@field' (the same; `state_dtype` overrides)
//   '?'         := may be left out (an output: exists when the input of the same name is given)
//   '&'         := an output that aliases the input of the same name: the call writes the input's memory, whether or
//                  not the output is given, and an output that is given must be that very tensor
//   dim         := name | number | name '+' number | number '*' name | name '/1'   ('/1': may be 1, which broadcasts)
//
//   "float[batch, q_len, num_q_heads, head_dim] ; float[total_q, num_q_heads, head_dim]"
//
// A malformed contract does not compile. Names bind across the inputs of a call (dims.h).
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "ejkernel/core/dtype.h"
#include "ejkernel/core/tensor.h"

namespace ejk {

enum class DTypeRule : uint8_t { one_of, same_as, result_of, stats_of, state_of };

/// A set of dtypes, one bit each.
using DTypeSet = uint32_t;
/// Nothing for a value that is no DType.
constexpr DTypeSet set_of(DType dtype) {
  return static_cast<int>(dtype) < kNumDTypes ? DTypeSet{1} << static_cast<int>(dtype) : 0;
}

struct DTypeClass {
  std::string_view name;
  DTypeSet dtypes;
};

inline constexpr DTypeSet kFloat = set_of(DType::f64) | set_of(DType::f32) | set_of(DType::f16) | set_of(DType::bf16);
inline constexpr DTypeSet kQuantised8 = set_of(DType::e4m3) | set_of(DType::e5m2) | set_of(DType::i8);

/// Classes and dtype names that a contract may use.
inline constexpr std::array kDTypeClasses = {
    DTypeClass{"float", kFloat},
    DTypeClass{"number", kFloat | kQuantised8},
    DTypeClass{"stored", kFloat | kQuantised8 | set_of(DType::i4)},
    DTypeClass{"float64", set_of(DType::f64)},
    DTypeClass{"float32", set_of(DType::f32)},
    DTypeClass{"int64", set_of(DType::i64)},
    DTypeClass{"int32", set_of(DType::i32)},
    DTypeClass{"uint32", set_of(DType::u32)},
    DTypeClass{"uint8", set_of(DType::u8)},
    DTypeClass{"bool", set_of(DType::boolean)},
};

struct Dim {
  std::string_view name = {};  // empty: a number
  int64_t number = 0;          // the number itself, the addend, or the factor
  enum class Kind : uint8_t { number, name, plus, times, broadcast } kind = Kind::number;
};

struct Alternative {
  DTypeRule rule = DTypeRule::one_of;
  DTypeSet dtypes = 0;
  std::string_view dtype_text = {};  // the class's name, or the field that `rule` refers to
  std::string_view dims_text = {};   // "[batch, q_len]"
  std::array<Dim, kMaxRank> dims = {};
  int rank = 0;
  int form = 0;
  bool optional = false;
  bool aliased = false;
};

namespace contract_error {
// Called only in constant evaluation: not constexpr, so reaching one stops the compiler at its name.
void unknown_dtype_class();
void expected_opening_bracket();
void expected_closing_bracket();
void expected_dimension();
void too_many_dimensions();
void too_many_alternatives();
void unexpected_text();
}  // namespace contract_error

class Contract {
 public:
  static constexpr int kMaxAlternatives = 8;

  consteval Contract(const char* text) : text_(text) {  // NOLINT: implicit, so that a field takes a literal
    num_forms_ = 1;
    for (;;) {
      if (!accept('-')) {
        parse_alternative();
        while (accept(" | ")) parse_alternative();
      }
      if (!accept(" ; ")) break;
      ++num_forms_;
    }
    if (at_ != text_.size()) contract_error::unexpected_text();
  }

  constexpr std::string_view text() const { return text_; }
  constexpr int num_forms() const { return num_forms_; }
  constexpr int size() const { return size_; }
  constexpr const Alternative* begin() const { return alternatives_.data(); }
  constexpr const Alternative* end() const { return alternatives_.data() + size_; }
  constexpr bool applies(const Alternative& alternative, int form) const {
    return num_forms_ == 1 || alternative.form == form;
  }

 private:
  constexpr bool accept(char c) {
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  constexpr bool accept(std::string_view word) {
    if (text_.substr(at_, word.size()) != word) return false;
    at_ += word.size();
    return true;
  }
  constexpr std::string_view identifier() {
    const size_t begin = at_;
    auto is_word = [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_'; };
    while (at_ < text_.size() && is_word(text_[at_])) ++at_;
    return text_.substr(begin, at_ - begin);
  }
  static constexpr bool is_number(std::string_view word) {
    for (char c : word)
      if (c < '0' || c > '9') return false;
    return !word.empty();
  }
  static constexpr int64_t to_number(std::string_view word) {
    int64_t value = 0;
    for (char c : word) value = value * 10 + (c - '0');
    return value;
  }

  constexpr void parse_alternative() {
    if (size_ == kMaxAlternatives) contract_error::too_many_alternatives();
    Alternative alternative;
    alternative.form = num_forms_ - 1;
    parse_dtypes(alternative);
    alternative.aliased = accept('&');
    alternative.optional = accept('?');
    const size_t begin = at_;
    if (!accept('[')) contract_error::expected_opening_bracket();
    if (!accept(']')) {
      do {
        if (alternative.rank == kMaxRank) contract_error::too_many_dimensions();
        alternative.dims[static_cast<size_t>(alternative.rank++)] = parse_dim();
      } while (accept(", "));
      if (!accept(']')) contract_error::expected_closing_bracket();
    }
    alternative.dims_text = text_.substr(begin, at_ - begin);
    alternatives_[static_cast<size_t>(size_++)] = alternative;
  }

  constexpr void parse_dtypes(Alternative& alternative) {
    if (accept("result@")) {
      alternative.rule = DTypeRule::result_of;
    } else if (accept("stats@")) {
      alternative.rule = DTypeRule::stats_of;
    } else if (accept("state@")) {
      alternative.rule = DTypeRule::state_of;
    } else if (accept('@')) {
      alternative.rule = DTypeRule::same_as;
    }
    alternative.dtype_text = identifier();
    if (alternative.rule != DTypeRule::one_of) return;
    for (const DTypeClass& known : kDTypeClasses)
      if (known.name == alternative.dtype_text) alternative.dtypes = known.dtypes;
    if (alternative.dtypes == 0) contract_error::unknown_dtype_class();
  }

  constexpr Dim parse_dim() {
    std::string_view word = identifier();
    if (word.empty()) contract_error::expected_dimension();
    if (is_number(word)) {
      if (!accept('*')) return {.number = to_number(word), .kind = Dim::Kind::number};
      std::string_view factor_of = identifier();
      if (factor_of.empty()) contract_error::expected_dimension();
      return {.name = factor_of, .number = to_number(word), .kind = Dim::Kind::times};
    }
    if (accept("/1")) return {.name = word, .kind = Dim::Kind::broadcast};
    if (!accept('+')) return {.name = word, .kind = Dim::Kind::name};
    std::string_view addend = identifier();
    if (!is_number(addend)) contract_error::expected_dimension();
    return {.name = word, .number = to_number(addend), .kind = Dim::Kind::plus};
  }

  std::string_view text_;
  size_t at_ = 0;
  std::array<Alternative, kMaxAlternatives> alternatives_ = {};
  int size_ = 0;
  int num_forms_ = 0;
};

}  // namespace ejk
