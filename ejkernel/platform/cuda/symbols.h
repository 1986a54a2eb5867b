// Tables of functions that are looked up in a library at run time: structs of nothing but {symbol, address} pairs.
#pragma once

#include <dlfcn.h>

#include <array>
#include <bit>
#include <string>
#include <string_view>
#include <vector>

namespace ejk::cuda {

/// Fills the addresses of `table` from `library`; returns the symbols that are not there.
template <class Table>
std::vector<std::string_view> load_symbols(void* library, Table& table) {
  struct Entry {
    const char* symbol;
    void* address;
  };
  static_assert(sizeof(Table) % sizeof(Entry) == 0);
  auto entries = std::bit_cast<std::array<Entry, sizeof(Table) / sizeof(Entry)>>(table);
  std::vector<std::string_view> missing;
  for (Entry& entry : entries) {
    entry.address = dlsym(library, entry.symbol);
    if (entry.address == nullptr) missing.push_back(entry.symbol);
  }
  table = std::bit_cast<Table>(entries);
  return missing;
}

/// Why the last dlopen failed.
inline std::string loader_error() {
  const char* why = dlerror();
  return why != nullptr ? why : "the loader gives no reason";
}

}  // namespace ejk::cuda
