// The three errors of the library, told apart by who must act.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

#include "ejkernel/core/export.h"

namespace ejk {

/// Codes are part of the C ABI (c_api.h repeats them) and of docs/errors.md, which has one entry per code.
enum class ErrorCode : int {
  ok = 0,
  invalid_argument = 1,  ///< the caller must change the call
  unsupported = 2,       ///< no kernel here can do it; the text lists every kernel's reason
  internal = 3,          ///< our fault, or the driver's
  no_config = 4,         ///< autotuning and heuristics are both off and nothing is cached (an `unsupported`)
  out_of_memory = 5,     ///< an allocation failed (an `internal`)
};

class EJK_API Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ErrorCode code() const noexcept { return code_; }

 private:
  ErrorCode code_;
};

/// "operation: what was expected, what was given (values), what to do"
class EJK_API InvalidArgument : public Error {
 public:
  explicit InvalidArgument(const std::string& message) : Error(ErrorCode::invalid_argument, message) {}
};

class EJK_API Unsupported : public Error {
 public:
  explicit Unsupported(const std::string& message, ErrorCode code = ErrorCode::unsupported) : Error(code, message) {}
};

class EJK_API Internal : public Error {
 public:
  explicit Internal(const std::string& message, ErrorCode code = ErrorCode::internal) : Error(code, message) {}
};

}  // namespace ejk
