// Memory for the library's own records that could not be had. Every entry of the C++ interface ends in
//
//   } catch (const std::bad_alloc&) {
//     throw_out_of_memory();
//   }
//
// so that it is the same typed error as memory for tensors.
#pragma once

#include <new>

#include "ejkernel/core/error.h"

namespace ejk {

inline constexpr char kOutOfMemory[] = "ejkernel: an allocation must succeed, got none; free memory and call again";

[[noreturn]] inline void throw_out_of_memory() { throw Internal(kOutOfMemory, ErrorCode::out_of_memory); }

}  // namespace ejk
