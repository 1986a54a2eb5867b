#include "ejkernel/runtime/problem.h"

#include <fmt/format.h>

#include <bit>

namespace ejk {
namespace {

void append_bytes(std::string& key, const void* bytes, size_t size) {
  key.append(static_cast<const char*>(bytes), size);
}
void append(std::string& key, int64_t value) { append_bytes(key, &value, sizeof value); }
void append(std::string& key, std::string_view text) {
  append(key, static_cast<int64_t>(text.size()));
  append_bytes(key, text.data(), text.size());
}

void append(std::string& key, const ParamValue& value) {
  key.push_back(static_cast<char>(value.index()));
  if (const bool* v = std::get_if<bool>(&value)) return append(key, int64_t{*v});
  if (const int64_t* v = std::get_if<int64_t>(&value)) return append(key, *v);
  if (const double* v = std::get_if<double>(&value)) return append(key, std::bit_cast<int64_t>(*v));
  if (const std::string* v = std::get_if<std::string>(&value)) return append(key, std::string_view(*v));
  if (const auto* v = std::get_if<std::vector<int64_t>>(&value)) {
    append(key, static_cast<int64_t>(v->size()));
    for (int64_t element : *v) append(key, element);
  }
}

ParamValue bucketed(ParamValue value) {
  if (int64_t* v = std::get_if<int64_t>(&value)) *v = bucket(*v);
  if (auto* v = std::get_if<std::vector<int64_t>>(&value))
    for (int64_t& element : *v) element = bucket(element);
  return value;
}

/// "present" is whether the caller changed it: absent or at its default is one case, anything else the other.
bool is_changed(const Operation& op, const ParamField& field, const ParamValue& value) {
  return value != field.get(op.default_params.data());
}

/// nullopt: the parameter is not part of the key.
std::optional<ParamValue> key_value(const Operation& op, const ParamField& field, const ParamsBlock& params) {
  if (field.key == Key::none) return std::nullopt;
  ParamValue value = field.get(params.data());
  if (field.key == Key::present) return is_changed(op, field, value);
  return field.key == Key::bucket ? bucketed(std::move(value)) : std::move(value);
}

}  // namespace

std::string problem_key(const Operation& op, std::span<const Tensor> inputs, const ParamsBlock& params,
                        const CheckedCall& checked, const std::string& device_fingerprint) {
  std::string key;
  key.reserve(768);
  append(key, op.name);
  append(key, int64_t{op.revision});
  append(key, std::string_view(device_fingerprint));
  append(key, int64_t{checked.form});
  for (const Tensor& t : inputs) {
    key.push_back(t.present() ? static_cast<char>(t.dtype) : '\x7f');
    if (!t.present()) continue;
    key.push_back(static_cast<char>(t.rank()));
    key.push_back(is_contiguous(t) ? 'c' : 's');
    // Which extents of 1 broadcast is layout, not length: the named dimension below does not tell.
    for (int axis = 0; axis < t.rank(); ++axis) key.push_back(t.shape[axis] == 1 ? '1' : 'n');
  }
  for (const Dims::Entry& dim : checked.dims.entries()) {
    append(key, dim.name);
    append(key, is_bucketed(dim.name) ? bucket(dim.value) : dim.value);
  }
  for (const ParamField& field : op.params) {
    const std::optional<ParamValue> value = key_value(op, field, params);
    if (value) append(key, *value);
  }
  return key;
}

std::string problem_text(const Operation& op, std::span<const Tensor> inputs, const ParamsBlock& params,
                         const CheckedCall& checked) {
  std::string text = fmt::format("{}@{}", op.name, op.revision);
  if (!op.forms.empty()) text += fmt::format(" {}", op.forms[static_cast<size_t>(checked.form)]);
  for (size_t i = 0; i < inputs.size(); ++i)
    if (inputs[i].present())
      text += fmt::format(" {}:{}{}", op.inputs[i].name, name(inputs[i].dtype),
                          is_contiguous(inputs[i]) ? "" : "(strided)");
  for (const Dims::Entry& dim : checked.dims.entries()) {
    const int64_t in_key = is_bucketed(dim.name) ? bucket(dim.value) : dim.value;
    text += fmt::format(" {}{}{}", dim.name, is_bucketed(dim.name) && in_key > kExactBuckets ? "<=" : "=", in_key);
  }
  for (const ParamField& field : op.params) {
    const std::optional<ParamValue> value = key_value(op, field, params);
    if (!value || value == key_value(op, field, op.default_params)) continue;
    text += fmt::format(" {}={}", field.name, field.key == Key::present ? "given" : to_string(*value));
  }
  return text;
}

}  // namespace ejk
