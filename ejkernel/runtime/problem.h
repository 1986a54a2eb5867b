// The tuning key of a call: everything a choice may depend on and nothing else, never data (runtime §1).
#pragma once

#include <span>
#include <string>

#include "ejkernel/core/digest.h"
#include "ejkernel/core/export.h"
#include "ejkernel/core/operation.h"
#include "ejkernel/core/validate.h"

namespace ejk {

/// Length-prefixed fields, so that no two problems share a key: operation and revision, device fingerprint, form, each
/// input's presence, dtype and strides class, each dimension (bucketed or exact), each parameter as its Key says.
EJK_API std::string problem_key(const Operation& operation, std::span<const Tensor> inputs, const ParamsBlock& params,
                                const CheckedCall& checked, const std::string& device_fingerprint);

/// The same as a line for people: "flash_attention@1 bf16 batch=2 q_len<=4096 … causal=true". Equal keys have equal
/// lines: records are found by them.
EJK_API std::string problem_text(const Operation& operation, std::span<const Tensor> inputs, const ParamsBlock& params,
                                 const CheckedCall& checked);

}  // namespace ejk
