// T-48: texts that a shell, a printf, a path or a compiler would act on, in every string that the library takes.
#include <fmt/format.h>

#include <array>
#include <filesystem>
#include <functional>
#include <memory>
#include <stdexcept>

#include "ejkernel/c_api.h"
#include "ejkernel/core/environment.h"
#include "ejkernel/core/error.h"
#include "ejkernel/runtime/config.h"
#include "ejkernel/runtime/json.h"
#include "ejkernel/runtime/plan.h"
#include "ejkernel/runtime/plugins.h"
#include "ejkernel/testing/operations.h"
#include "ejkernel/testing/process.h"
#include "ejkernel/testing/temporary_folder.h"
#include "tools/table/rows.h"

namespace ejk::testing {
namespace {

/// Somewhere that takes a text. Most must refuse all of these; a list of paths may hold any.
struct Sink {
  std::string name;
  std::function<void(const std::string&)> take;
  bool may_accept = false;
};
using Sinks = std::vector<Sink>;

std::vector<std::string> texts_that_would_run(const std::string& canary) {
  return {"$(touch " + canary + ")",
          "`touch " + canary + "`",
          "; touch " + canary,
          "| touch " + canary,
          "&& touch " + canary,
          "%n%n%n%s",
          "../../../../etc/passwd",
          "/dev/stdin",
          "\"; system(\"touch " + canary + "\"); \"",
          "#include \"/etc/passwd\"",
          "{\"block_q\": \"$(touch " + canary + ")\"}",
          "-c",
          "--",
          std::string(1 << 16, 'A'),
          "\n\r\t\x1b[2J",
          "\xff\xfe\x80",
          "🙂",
          "",
          " ",
          "'"};
}

void add_names(Sinks& sinks) {
  sinks.push_back({"registry", [](const std::string& text) { KernelRegistry::instance().find(text); }});
  sinks.push_back({"row", [](const std::string& text) { find_row(text); }});
  sinks.push_back({"test operation", [](const std::string& text) { find_test_operation(text); }});
  sinks.push_back({"tree", [](const std::string& text) { find_tree(std::filesystem::path("/nonexistent") / text); }});
  sinks.push_back({"plug-in", [](const std::string& text) { load_plugin(text); }});
  const Operation& op = *test_operations().front()->declaration;
  sinks.push_back({"kernel",
                   [&op](const std::string& text) {
                     const Problem problem = find_test_operation(op.name).random({.seed = 1, .size = Size::tiny});
                     Plan::make(op.name, problem.views(), problem.params, {.kernel = text});
                   },
                   /*may_accept=*/true});  // an empty name asks for any kernel
}

void add_parameters(Sinks& sinks) {
  for (const TestOperation* tests : test_operations()) {
    const Operation& op = *tests->declaration;
    const std::string name(op.name);
    sinks.push_back({name + " config", [&op](const std::string& text) { config_values_from_json(op.name, text); }});
    sinks.push_back({name + " parameter's name", [&op](const std::string& text) {
                       ParamsBlock params = op.default_params;
                       set_param(op, params, text, true);
                     }});
    for (const ParamField& field : op.params)
      sinks.push_back({fmt::format("{} {}", name, field.name), [&op, &field](const std::string& text) {
                         ParamsBlock params = op.default_params;
                         set_param(op, params, field.name, text);
                       }});
  }
}

/// An empty variable counts as not set, and any path as a plug-in's.
void add_variables(Sinks& sinks) {
  for (const environment::Variable& variable : environment::variables())
    sinks.push_back({std::string(variable.name),
                     [&variable](const std::string& text) {
                       environment::parse(
                           [&](const char* name) { return variable.name == name ? text.c_str() : nullptr; });
                     },
                     /*may_accept=*/true});
}

/// What a C caller is told, as C++ callers are.
void require(ejk_status status) {
  const char* why = nullptr;
  if (status == EJK_OK) return;
  ejk_last_error(&why);
  if (status != EJK_INVALID_ARGUMENT && status != EJK_UNSUPPORTED) throw std::logic_error(why);
  throw InvalidArgument(why);
}

/// A call of mean_pooling through the C interface, with names that a caller may choose.
void plan_in_c(const char* operation, const char* input, const ejk_plan_options& options) {
  std::array<int64_t, 3> shape = {1, 2, 3};
  const DLTensor spec = {nullptr, {kDLCPU, 0}, 3, {kDLFloat, 32, 1}, shape.data(), nullptr, 0};
  const ejk_tensor x = {input, &spec};
  ejk_plan_t* plan = nullptr;
  const ejk_status status = ejk_plan(operation, &x, 1, nullptr, &options, &plan);
  ejk_free(plan);
  require(status);
}

void add_c_interface(Sinks& sinks) {
  static constexpr const char* kOperation = "flash_attention";
  using Set = ejk_status (*)(ejk_params_t*, const char*);
  const auto add = [&](std::string name, Set set) {
    sinks.push_back({"C: " + std::move(name), [set](const std::string& text) {
                       ejk_params_t* params = nullptr;
                       require(ejk_params_new(kOperation, &params));
                       const ejk_status status = set(params, text.c_str());
                       ejk_params_free(params);
                       require(status);
                     }});
  };
  add("ejk_params_set_i64", [](ejk_params_t* p, const char* text) { return ejk_params_set_i64(p, text, 1); });
  add("ejk_params_set_f64", [](ejk_params_t* p, const char* text) { return ejk_params_set_f64(p, text, 1); });
  add("ejk_params_set_bool", [](ejk_params_t* p, const char* text) { return ejk_params_set_bool(p, text, 1); });
  add("ejk_params_set_str", [](ejk_params_t* p, const char* text) { return ejk_params_set_str(p, text, "1"); });
  add("ejk_params_set_i64s", [](ejk_params_t* p, const char* text) {
    const int64_t values[] = {1, 2};
    return ejk_params_set_i64s(p, text, values, 2);
  });
  add("a value", [](ejk_params_t* p, const char* text) { return ejk_params_set_str(p, "causal", text); });
  sinks.push_back({"C: ejk_params_new", [](const std::string& text) {
                     ejk_params_t* params = nullptr;
                     const ejk_status status = ejk_params_new(text.c_str(), &params);
                     ejk_params_free(params);
                     require(status);
                   }});
  sinks.push_back({"C: ejk_xla_handlers", [](const std::string& text) {
                     ejk_xla handlers = {sizeof(ejk_xla), nullptr, nullptr, nullptr};
                     require(ejk_xla_handlers(text.c_str(), &handlers));
                   }});
  const ejk_plan_options plain = {sizeof(ejk_plan_options), nullptr, nullptr, nullptr, nullptr, nullptr, nullptr};
  sinks.push_back({"C: operation", [plain](const std::string& text) { plan_in_c(text.c_str(), "x", plain); }});
  sinks.push_back({"C: input", [plain](const std::string& text) { plan_in_c("mean_pooling", text.c_str(), plain); }});
  for (const auto option : {&ejk_plan_options::platform, &ejk_plan_options::backend, &ejk_plan_options::kernel,
                            &ejk_plan_options::config, &ejk_plan_options::policy})
    sinks.push_back({"C: option",
                     [plain, option](const std::string& text) {
                       ejk_plan_options options = plain;
                       options.*option = text.c_str();
                       plan_in_c("mean_pooling", "x", options);
                     },
                     /*may_accept=*/true});  // an empty text is none
}

/// Words of the command line tool that stands beside this program, in a folder of its own. "--" is taken as a word.
void add_command_line(Sinks& sinks, const std::string& folder) {
  const std::string tool = (std::filesystem::read_symlink("/proc/self/exe").parent_path() / "ejk").string();
  const auto add = [&](std::vector<std::string> words) {
    words.insert(words.begin(), tool);
    sinks.push_back({fmt::format("{}", fmt::join(words.begin() + 1, words.end(), " ")),
                     [words, folder](const std::string& text) {
                       std::vector<std::string> all = words;
                       all.push_back(text);
                       const ProcessResult result = run_process(all, {"EJKERNEL_CACHE_DIR=" + folder}, folder);
                       if (result.exit_code > 2)  // neither done nor refused
                         throw std::logic_error(fmt::format("exit code {}: {:.200}", result.exit_code, result.err));
                     },
                     /*may_accept=*/true});
  };
  for (const char* verb : {"run", "explain", "list"}) add({verb});
  add({});
  for (const char* flag : {"--case", "--form", "--dtype", "--input", "--seed", "--shape", "--batch", "--chunk_size",
                           "--device", "--platform", "--kernel", "--config", "--policy"})
    add({"run", "mean_pooling", flag});
}

}  // namespace

RowResult injected_texts(const RowRequest&) {
  const TemporaryFolder folder;
  const std::string canary = folder / "ejkernel_injected";
  Sinks sinks;
  add_names(sinks);
  add_parameters(sinks);
  add_variables(sinks);
  add_c_interface(sinks);
  add_command_line(sinks, folder.path().string());
  Tally tally;
  for (const std::string& text : texts_that_would_run(canary))
    for (const Sink& sink : sinks) {
      std::string wrong = sink.may_accept ? "" : "accepted";
      try {
        sink.take(text);
      } catch (const Error&) {
        wrong.clear();
      } catch (const std::exception& error) {
        wrong = error.what();
      }
      if (std::filesystem::exists(canary)) wrong = "executed";
      tally.add(wrong.empty() ? "" : fmt::format("text {:.40} in {}: {}", text, sink.name, wrong));
    }
  RowResult result = tally.result();
  result.figures["places"] = static_cast<double>(sinks.size());
  return result;
}

}  // namespace ejk::testing
