// ejk check --table: every row of the reliability table against its committed record.
#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "ejkernel/testing/table.h"
#include "tools/ejk/print.h"
#include "tools/ejk/verbs.h"

namespace ejk::tool {
namespace {

using Json = nlohmann::ordered_json;
using testing::RowState;
using testing::RowStatus;

Colour colour_of(RowState state) {
  if (state == RowState::ok) return Colour::green;
  return state == RowState::failed || state == RowState::short_of_target ? Colour::red : Colour::yellow;
}

Json json_of(const RowStatus& status) {
  Json json = {{"id", status.row->id},
               {"category", status.row->category},
               {"state", name(status.state)},
               {"target", status.row->target}};
  if (status.state == RowState::missing) return json;
  json["n"] = status.record.n;
  json["failures"] = status.record.failures;
  json["seed"] = status.record.seed;
  json["commit"] = status.record.commit;
  json["machine"] = status.record.machine;
  json["preset"] = status.record.preset;
  json["minutes"] = status.record.minutes;
  json["figures"] = status.record.figures;
  json["command"] = status.record.command;
  return json;
}

}  // namespace

int print_reliability_table(bool as_json) {
  const auto rows = testing::table_status(testing::find_tree(std::filesystem::current_path()));
  Json json = Json::array();
  Table table("llrrrll", " | ");
  table.add({"row", "category", "n", "target", "failures", "state", "figures"});
  int64_t bad = 0, not_shown = 0;
  for (const RowStatus& status : rows) {
    bad += status.state == RowState::failed || status.state == RowState::short_of_target;
    not_shown += status.state == RowState::missing || status.state == RowState::stale;
    json.push_back(json_of(status));
    const bool missing = status.state == RowState::missing;
    std::string figures;
    for (const auto& [figure, value] : status.record.figures) figures += fmt::format("{}={:.3g} ", figure, value);
    table.add({std::string(status.row->id), std::string(status.row->category),
               missing ? "" : std::to_string(status.record.n), std::to_string(status.row->target),
               missing ? "" : std::to_string(status.record.failures),
               coloured(name(status.state), colour_of(status.state)), figures});
  }
  if (as_json)
    fmt::print("{}\n", json.dump(2));
  else
    fmt::print("{}\n{} rows, {} failed or short of their target, {} stale or missing\n", table.text(), rows.size(), bad,
               not_shown);
  return bad == 0 ? 0 : 1;
}

}  // namespace ejk::tool
