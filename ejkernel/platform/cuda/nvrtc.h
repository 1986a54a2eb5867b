// NVRTC, the CUDA compiler as a library: where it is found, and its functions once it is loaded.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ejkernel/core/export.h"

namespace ejk::cuda {

using nvrtcProgram = struct nvrtcProgram_st*;

template <class... Args>
struct NvrtcFunction {
  const char* symbol;
  int (*address)(Args...) = nullptr;
  /// 0 is success.
  int operator()(Args... args) const { return address(args...); }
};

/// Like DriverApi: nothing but functions, so that a test's fake compiler is another value of it.
struct NvrtcApi {
  NvrtcFunction<int*, int*> version{"nvrtcVersion"};
  NvrtcFunction<nvrtcProgram*, const char*, const char*, int, const char* const*, const char* const*> create_program{
      "nvrtcCreateProgram"};
  NvrtcFunction<nvrtcProgram*> destroy_program{"nvrtcDestroyProgram"};
  NvrtcFunction<nvrtcProgram, const char*> add_name_expression{"nvrtcAddNameExpression"};
  NvrtcFunction<nvrtcProgram, int, const char* const*> compile_program{"nvrtcCompileProgram"};
  NvrtcFunction<nvrtcProgram, size_t*> log_size{"nvrtcGetProgramLogSize"};
  NvrtcFunction<nvrtcProgram, char*> log{"nvrtcGetProgramLog"};
  NvrtcFunction<nvrtcProgram, size_t*> cubin_size{"nvrtcGetCUBINSize"};
  NvrtcFunction<nvrtcProgram, char*> cubin{"nvrtcGetCUBIN"};
  NvrtcFunction<nvrtcProgram, const char*, const char**> lowered_name{"nvrtcGetLoweredName"};
};

/// A loaded compiler.
struct Nvrtc {
  NvrtcApi api = {};
  std::string path = {};
  int major = 0, minor = 0;
};
/// Loads a library file. Throws Unsupported when it is none of NVRTC 12 or later.
EJK_API Nvrtc load_nvrtc(const std::string& path);

/// A compiler's file, before it is loaded: loading takes long, and what is in the store needs none.
struct NvrtcFile {
  std::string path;
  std::string place;     ///< which of the places it was found in
  std::string identity;  ///< changes when the file does: enters the keys of compiled kernels
};

/// The places, in order, and what was found: the file that EJKERNEL_NVRTC names; one that the process has loaded; the
/// nvidia wheels of the Pythons around; a CUDA toolkit; the system's library folders. In all of them the driver's own
/// major version is looked for before older ones, and a newer one is never taken.
struct NvrtcSearch {
  std::optional<NvrtcFile> found = {};
  std::vector<std::string> looked = {};  ///< one line per place, for `ejk doctor`
};
EJK_API NvrtcSearch search_nvrtc();

/// The major versions of CUDA whose compilers' code the driver takes (any, where there is no driver), newest first.
std::vector<int> usable_majors();

/// The compiler that the search finds; searched and loaded once. Throws Unsupported, listing the places, without one.
EJK_API const Nvrtc& nvrtc();
/// Its file alone; null where there is none.
EJK_API const NvrtcFile* nvrtc_file();

/// For tests: this compiler from now on; null: the one that the search finds.
EJK_API void use_nvrtc(const Nvrtc* fake);

}  // namespace ejk::cuda
