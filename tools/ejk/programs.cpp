#include "tools/ejk/programs.h"

#include "ejkernel/core/environment.h"
#include "ejkernel/core/installation.h"
#include "ejkernel/core/store.h"
#include "ejkernel/platform/cuda/cubin_store.h"

namespace ejk::tool {

std::map<std::string, int64_t> programs_compiled_ahead() {
  std::map<std::string, int64_t> numbers;
  const Store places("", {.read_only = environment::config_path().value_or(shipped_tables())});
  places.for_each_found([&](const StoredRecord& stored) {
    if (const auto key = cuda::ahead_key_of(stored.key); key == stored.key) ++numbers[stored.key.environment];
  });
  return numbers;
}

}  // namespace ejk::tool
