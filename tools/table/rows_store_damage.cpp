// T-33: files that are not what they were: cut, changed, swapped, of another kind, version or size.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <map>

#include "ejkernel/core/record_format_internal.h"
#include "ejkernel/core/store.h"
#include "ejkernel/core/store_archive.h"
#include "ejkernel/testing/random.h"
#include "ejkernel/testing/temporary_folder.h"
#include "tools/table/rows.h"
#include "tools/table/store_trials.h"

namespace ejk::testing {
namespace {

namespace fs = std::filesystem;

/// One way to spoil a file.
struct Damage {
  std::string_view what;
  std::function<std::string(Random&, std::string good, const std::string& other)> make;
};

std::string with_integer(std::string bytes, size_t at, uint64_t value, size_t size) {
  for (size_t i = 0; i < size; ++i) bytes[at + i] = static_cast<char>(value >> (8 * i));
  return bytes;
}

/// As another version would have written it.
std::string of_schema(std::string bytes, uint64_t schema) {
  bytes = with_integer(bytes, 8, schema, 4);
  record_format::sign(bytes);
  return bytes;
}

const std::vector<Damage>& damages() {
  static const auto* all = new std::vector<Damage>{
      {"a bit flipped",
       [](Random& r, std::string good, const std::string&) {
         auto& byte = good[static_cast<size_t>(r.below(static_cast<int64_t>(good.size())))];
         byte = static_cast<char>(byte ^ (1 << r.below(8)));
         return good;
       }},
      {"bytes overwritten",
       [](Random& r, std::string good, const std::string&) {
         for (int64_t i = r.between(1, 64); i > 0; --i)
           good[static_cast<size_t>(r.below(static_cast<int64_t>(good.size())))] = static_cast<char>(r.below(256));
         return good;
       }},
      {"cut",
       [](Random& r, std::string good, const std::string&) {
         return good.substr(0, static_cast<size_t>(r.below(static_cast<int64_t>(good.size()))));
       }},
      {"longer", [](Random& r, std::string good,
                    const std::string&) { return good + std::string(static_cast<size_t>(r.between(1, 5000)), 'x'); }},
      {"empty", [](Random&, std::string, const std::string&) { return std::string(); }},
      {"zeros", [](Random&, std::string good, const std::string&) { return std::string(good.size(), '\0'); }},
      {"another key's record", [](Random&, std::string, const std::string& other) { return other; }},
      {"a page of another record",
       [](Random&, std::string good, const std::string& other) {
         return good.replace(0, std::min<size_t>(4096, good.size()),
                             other.substr(0, std::min<size_t>(4096, good.size())));
       }},
      {"another type", [](Random&, std::string, const std::string&) { return std::string("{\"block_m\": -1}"); }},
      {"deep nesting", [](Random&, std::string, const std::string&) { return std::string(1 << 20, '['); }},
      {"an older schema", [](Random&, std::string good, const std::string&) { return of_schema(good, 0); }},
      {"a newer schema",
       [](Random& r, std::string good, const std::string&) {
         return of_schema(good, static_cast<uint64_t>(r.between(2, 1 << 30)));
       }},
      {"a hostile size",
       [](Random& r, std::string good, const std::string&) {
         return with_integer(good, 16 + 8 * static_cast<size_t>(r.below(3)),
                             r.pick<uint64_t>({~uint64_t{0}, uint64_t{1} << 63, uint64_t{1} << 40, good.size() + 1, 0}),
                             8);
       }},
  };
  return *all;
}

/// A spoilt file serves the right value or none, and what is not spoilt is served: the check can fail either way.
std::string judge_find(const Store& store, const RecordKey& key, const ejk::Record& right, bool is_good) {
  const auto found = store.find(key);
  if (found && found->value != right.value) return "a wrong value was served";
  if (is_good && !found) return "a good record was not found";
  return "";
}

/// An archive with one byte of it changed, or cut, serves right values or none.
std::string damaged_archive(Random& random, const TemporaryFolder& scratch, const std::string& good,
                            const std::map<int64_t, ejk::Record>& records) {
  const Damage& damage = damages()[static_cast<size_t>(random.below(4))];
  const std::string path = scratch / "damaged.ejk";
  write_bytes(path, damage.make(random, good, good));
  std::string why;
  const auto archive = Archive::open(path, why);
  if (archive == nullptr) return why.empty() ? "an archive is refused without a reason" : "";
  for (const auto& [i, record] : records) {
    const auto found = archive->find(key_of(i));
    if (found && found->value != record.value) return std::string(damage.what) + ": a wrong value from an archive";
  }
  return "";
}

std::string sparse_gigabyte(const Store& store, const RecordKey& key) {
  fs::resize_file(store.path_of(key), uint64_t{1} << 30);
  return store.find(key) ? "a gigabyte was read as a record" : "";
}

int64_t count_records(const Store& store) {
  int64_t records = 0;
  store.for_each([&](const StoredRecord&) { ++records; });
  return records;
}

/// Folders in folders where records stand lead nowhere.
std::string deep_folders(const Store& store) {
  const int64_t before = count_records(store);
  fs::path folder = fs::path(store.path_of(key_of(0))).parent_path();
  for (int depth = 0; depth < 100; ++depth) fs::create_directory(folder /= std::string(32, 'd').substr(depth % 2));
  const int64_t after = count_records(store);
  return after == before + 1 ? "" : "a folder called like a record leads to records";
}

}  // namespace

RowResult corrupt_records(const RowRequest& request) {
  const TemporaryFolder scratch(Medium::memory);
  const Store store(scratch / "store");
  Random random(request.seed);
  Tally tally;
  std::map<int64_t, ejk::Record> records;
  std::map<int64_t, std::string> files;
  ArchiveBuilder builder;
  for (int64_t i = 0; i < 6; ++i) {
    records[i] = {value_of(i, static_cast<size_t>(10 + 3000 * i)), "a test"};
    store.put(key_of(i), records[i]);
    files[i] = read_bytes(store.path_of(key_of(i)));
    builder.add(key_of(i), records[i]);
  }
  builder.write(scratch / "good.ejk");
  const std::string archive = read_bytes(scratch / "good.ejk");

  tally.add(sparse_gigabyte(store, key_of(0)));
  tally.add(deep_folders(store));
  int64_t mended = 0;
  for (int64_t i = 2; i < request.n; ++i) {
    if (i % 10 == 0) {
      tally.add(damaged_archive(random, scratch, archive, records));
      continue;
    }
    const int64_t which = random.below(6);
    const RecordKey key = key_of(which);
    write_bytes(store.path_of(key), files[which]);
    std::string wrong = judge_find(store, key, records[which], /*is_good=*/true);
    const Damage& damage = damages()[static_cast<size_t>(i) % damages().size()];
    write_bytes(store.path_of(key), damage.make(random, files[which], files[(which + 2) % 6]));
    if (wrong.empty()) wrong = judge_find(store, key, records[which], /*is_good=*/false);
    // A put mends what it may: all but a newer version's record, which is left alone.
    if (wrong.empty() && i % 25 == 1 && damage.what != "a newer schema") {
      ++mended;
      if (!store.put(key, records[which])) wrong = "the next put failed";
      if (wrong.empty()) wrong = judge_find(store, key, records[which], /*is_good=*/true);
    }
    tally.add(wrong.empty() ? "" : fmt::format("{}: {}", damage.what, wrong));
  }
  RowResult result = tally.result();
  result.figures["mended_by_a_put"] = static_cast<double>(mended);
  return result;
}

}  // namespace ejk::testing
