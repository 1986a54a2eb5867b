// ejkernel_table T-nn [--n N] [--seed S] [--commit C]: produces one row of the reliability table and writes its record;
// --commit says what the program was built from, where it runs outside of its tree.
// ejkernel_table digests SEED ORDER: one of the processes that row T-21 compares.
// ejkernel_table frozen SEED N THREADS: one of those that row T-23 compares.
// ejkernel_table sanitized SEED N: what rows T-11 to T-13 run under compute-sanitizer.
// ejkernel_table race: what row T-36 runs to see that a race is reported.
#include <fmt/format.h>

#include <charconv>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string_view>

#include "ejkernel/core/error.h"
#include "ejkernel/core/validate.h"
#include "ejkernel/testing/table.h"
#include "tools/table/rows.h"

namespace {

using namespace ejk::testing;

template <class T>
T number(std::string_view option, std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size())
    ejk::throw_invalid("table", option, "be a whole number", text, "for example --n 1000");
  return value;
}

int produce(int argc, char** argv) {
  const Row& row = find_row(argc > 1 ? argv[1] : "");
  RowRequest request{.n = row.target, .seed = 1};
  std::string commit;
  for (int i = 2; i < argc; i += 2) {
    const std::string_view option = argv[i], value = i + 1 < argc ? argv[i + 1] : "";
    if (option == "--n")
      request.n = number<int64_t>(option, value);
    else if (option == "--seed")
      request.seed = number<uint64_t>(option, value);
    else if (option == "--commit" && !value.empty())
      commit = value;
    else
      ejk::throw_invalid("table", "the option", "be --n, --seed or --commit", option, "for example --n 1000 --seed 7");
  }
  const Record record =
      produce_record(row, row_function(row.id), request, find_tree(std::filesystem::current_path()), commit);
  fmt::print("{} {}: n {} of {}, failures {}, {:.1f} minutes\n", record.id, row.category, record.n, record.target,
             record.failures, record.minutes);
  for (const auto& [name, value] : record.figures) fmt::print("  {} {:.4g}\n", name, value);
  for (const std::string& note : record.notes) fmt::print("  {}\n", note);
  return record.failures == 0 && record.n >= record.target ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  ::setenv("EJKERNEL_AUTOTUNE_POLICY", "heuristics", /*overwrite=*/0);  // rows about the tuner tune by themselves
  ::setenv("EJKERNEL_CONFIG_PATH", "none", /*overwrite=*/0);
  try {
    if (argc == 4 && std::string_view(argv[1]) == "digests") {
      fmt::print("{}", digests_in_order(number<uint64_t>("SEED", argv[2]), number<uint64_t>("ORDER", argv[3])));
      return 0;
    }
    if (argc == 5 && std::string_view(argv[1]) == "frozen") {
      fmt::print("{}", replay_frozen(number<uint64_t>("SEED", argv[2]), number<int64_t>("N", argv[3]),
                                     number<int>("THREADS", argv[4])));
      return 0;
    }
    if (argc == 2 && std::string_view(argv[1]) == "race") {
      fmt::print("reports {}\n", reports_of_a_race());
      return 0;
    }
    if (argc == 4 && std::string_view(argv[1]) == "sanitized") {
      fmt::print("{}", runs_under_sanitizer(number<uint64_t>("SEED", argv[2]), number<int64_t>("N", argv[3])));
      return 0;
    }
    return produce(argc, argv);
  } catch (const ejk::Error& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 2;
  }
}
