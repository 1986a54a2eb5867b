#include "ejkernel/runtime/config.h"

#include <fmt/format.h>

#include <algorithm>

#include "ejkernel/core/validate.h"

namespace ejk {

ConfigValues config_values(const KernelInfo& kernel, const ConfigBlock& config) {
  ConfigValues values;
  for (const ConfigField& field : kernel.config_fields) values.emplace_back(field.name, field.get(config.data()));
  return values;
}

ConfigBlock config_from_values(std::string_view operation, const KernelInfo& kernel, ConfigBlock config,
                               const ConfigValues& values) {
  for (const auto& entry : values) {
    const std::string& name = entry.first;  // clang 14 lets no lambda capture a structured binding
    const int64_t value = entry.second;
    const auto field = std::find_if(kernel.config_fields.begin(), kernel.config_fields.end(),
                                    [&](const ConfigField& f) { return f.name == name; });
    if (field == kernel.config_fields.end()) {
      std::string known;
      for (const ConfigField& f : kernel.config_fields) known += fmt::format(" {}", f.name);
      throw_invalid(operation, fmt::format("config field '{}'", name),
                    fmt::format("be one of kernel {}'s", kernel.name), "an unknown name",
                    known.empty() ? "it has none" : "it has" + known);
    }
    if (std::find(field->legal.begin(), field->legal.end(), value) == field->legal.end())
      throw_invalid(operation, fmt::format("config field {} of kernel {}", name, kernel.name),
                    fmt::format("be one of {}", fmt::join(field->legal, ", ")), std::to_string(value),
                    "choose a legal value");
    field->set(config.data(), value);
  }
  return config;
}

bool is_legal(const KernelInfo& kernel, const ConfigBlock& config) {
  return std::all_of(kernel.config_fields.begin(), kernel.config_fields.end(), [&](const ConfigField& field) {
    return std::find(field.legal.begin(), field.legal.end(), field.get(config.data())) != field.legal.end();
  });
}

std::string to_string(const KernelInfo& kernel, const ConfigBlock& config) {
  std::string text;
  for (const auto& [name, value] : config_values(kernel, config))
    text += fmt::format("{}{}={}", text.empty() ? "" : " ", name, value);
  return text.empty() ? "-" : text;
}

}  // namespace ejk
