// Config values without their type: legality, text and equality, by walking a kernel's config fields.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ejkernel/core/export.h"
#include "ejkernel/core/operation.h"

namespace ejk {

/// Field names and values: how a config travels outside the library (overrides, C ABI, command line, JSON).
using ConfigValues = std::vector<std::pair<std::string, int64_t>>;

EJK_API ConfigValues config_values(const KernelInfo& kernel, const ConfigBlock& config);
/// The config with those values over `base`'s. InvalidArgument for an unknown field or an illegal value.
EJK_API ConfigBlock config_from_values(std::string_view operation, const KernelInfo& kernel, ConfigBlock base,
                                       const ConfigValues& values);
/// Every field holds one of its legal values.
EJK_API bool is_legal(const KernelInfo& kernel, const ConfigBlock& config);
/// "block_q=64 block_k=128"; "-" for a kernel without config.
EJK_API std::string to_string(const KernelInfo& kernel, const ConfigBlock& config);

}  // namespace ejk
