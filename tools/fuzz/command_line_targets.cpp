// ejk's command line: words that become options of every kind, and flags that become a call.
#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <stdexcept>

#include "ejkernel/core/validate.h"
#include "ejkernel/runtime/registry.h"
#include "tools/ejk/call_flags.h"
#include "tools/fuzz/targets.h"

namespace ejk::fuzz {
namespace {

using tool::CallFlags;
using tool::Options;

/// What the parser says to people goes nowhere; a sanitizer writes past these.
class Silence {
 public:
  Silence() {
    static FILE* const nowhere = std::fopen("/dev/null", "w");
    stderr = nowhere;
    std::cout.setstate(std::ios::failbit);
    std::cerr.setstate(std::ios::failbit);
  }
  ~Silence() {
    stderr = errors_;
    std::cout.clear();
    std::cerr.clear();
  }
  Silence(const Silence&) = delete;
  Silence& operator=(const Silence&) = delete;

 private:
  FILE* const errors_ = stderr;
};

/// Every kind of option, a command below and words without dashes.
tool::Action declare_kinds(Options& options) {
  struct Given {
    bool flag = false;
    std::string text, word;
    int64_t number = 0;
    uint64_t seed = 0;
    double seconds = 0;
    std::vector<std::string> texts;
  };
  const auto given = std::make_shared<Given>();
  options.group("Kinds").flag("flag", given->flag, "a flag").value("text", given->text, "TEXT", "a text");
  options.value("number", given->number, "N", "a number").value("seed", given->seed, "N", "one of at least 0");
  options.seconds(given->seconds, "seconds").values("texts", given->texts, "TEXT", "several");
  options.positional("word", given->word, "a word");
  Options below = options.command("below", "a command below");
  below.value("number", given->number, "N", "again").footer("the end");
  return [given] {
    if (given->seconds < 0) throw std::logic_error("negative seconds are taken");
    return int{tool::kOk};
  };
}

/// The real flags of a choice.
tool::Action declare_choice(Options& options) {
  const auto flags = std::make_shared<CallFlags>();
  tool::declare_choice(options, *flags);
  return [flags] { return tool::plan_options(*flags), int{tool::kOk}; };
}

constexpr tool::Verb kVerbs[] = {{"kinds", "every kind of option", "  ejk kinds", declare_kinds},
                                 {"choice", "a choice", "  ejk choice", declare_choice}};

/// One word a line. Whatever they are, they are taken or refused as a wrong command line.
void run_command_line(const std::string& input) {
  std::vector<std::string> words = {"ejk"};
  for (size_t begin = 0; begin < input.size();) {
    const size_t end = std::min(input.find('\n', begin), input.size());
    words.push_back(input.substr(begin, end - begin));
    begin = end + 1;
  }
  std::vector<const char*> argv;
  for (const std::string& word : words) argv.push_back(word.c_str());
  int code = 0;
  {
    const Silence silence;
    code = tool::run_command_line(kVerbs, static_cast<int>(argv.size()), argv.data());
  }
  if (code != tool::kOk && code != tool::kUsage) throw std::logic_error(fmt::format("the exit code is {}", code));
}

/// "--name" and a value, as the declared flags of an operation would set it.
void set_flag(CallFlags& flags, const std::string& name, const std::string& value) {
  static const std::map<std::string, std::function<void(CallFlags&, const std::string&)>> setters = {
      {"form", [](CallFlags& f, const std::string& text) { f.form = text; }},
      {"dtype", [](CallFlags& f, const std::string& text) { f.dtype = text; }},
      {"input", [](CallFlags& f, const std::string& text) { f.inputs.push_back(text); }},
      {"config", [](CallFlags& f, const std::string& text) { f.config.push_back(text); }},
      {"device", [](CallFlags& f, const std::string& text) { f.device = tool::parse_device(text); }},
      {"platform", [](CallFlags& f, const std::string& text) { f.platform = text; }},
      {"kernel", [](CallFlags& f, const std::string& text) { f.kernel = text; }},
      {"policy", [](CallFlags& f, const std::string& text) { f.policy = text; }}};
  if (const auto setter = setters.find(name); setter != setters.end()) return setter->second(flags, value);
  const Operation& op = *KernelRegistry::instance().find(flags.operation)->declaration;
  if (name == "shape") return tool::set_shape(op, value, flags);
  for (const ParamField& field : op.params)
    if (field.name == name) flags.params.emplace_back(name, value);
  for (const std::string& dim : tool::dim_names(op, std::nullopt))
    if (dim == name) flags.dims[name] = std::strtoll(value.c_str(), nullptr, 10) & INT64_MAX;
}

/// "NAME=VALUE" a line, after the operation's name.
void run_call(const std::string& input) {
  CallFlags flags;
  size_t begin = std::min(input.find('\n'), input.size());
  flags.operation = input.substr(0, begin);
  while (++begin <= input.size()) {
    const size_t end = std::min(input.find('\n', begin), input.size());
    const std::string line = input.substr(begin, end - begin);
    const size_t equals = std::min(line.find('='), line.size());
    set_flag(flags, line.substr(0, equals), line.substr(std::min(equals + 1, line.size())));
    begin = end;
  }
  tool::plan_options(flags);
  const tool::ToolCall call = tool::make_call(flags);
  check_call(*KernelRegistry::instance().find(flags.operation)->declaration, call.inputs, call.params);
}

}  // namespace

Target command_line_target() {
  return {.name = "command_line",
          .seeds = {"kinds\n--flag\n--text\na\n--number\n17\n--seed=3\n--seconds\n0.5\n--texts\na\n--texts\nb\nword",
                    "kinds\n--flag=false\nbelow\n--number\n-4", "kinds\n--help", "--version", "--help", "kinds\n--sed",
                    "choice\n--device\ncuda:1\n--platform\ncpu\n--kernel\ncpu\n--config\nblock_q=64\n--policy\ncached",
                    "choice\n--device=cpu\n--config=a\n--policy=x", "choise", "kinds\n--\n--flag"},
          .words = {"\n",        "--",       "-",       "=",        "--flag",   "--number", "--seed",
                    "--seconds", "--texts",  "--text",  "--config", "--device", "--policy", "--help",
                    "kinds\n",   "choice\n", "below\n", "1e308",    "inf",      "cuda:"},
          .run = run_command_line};
}

Target call_target() {
  return {.name = "call",
          .seeds = {"flash_attention\ndtype=bf16\nbatch=2\nq_len=5\nnum_q_heads=4\nnum_kv_heads=2\ncausal=true",
                    "flash_attention\nform=packed\nnum_seqs=3\ntotal_q=40\nsliding_window=3,4\nsoftmax_scale=0.5",
                    "flash_attention\ninput=bias=f32[1, 1, 8, 8]\nq_len=8\nconfig=block_q=64\nplatform=cpu",
                    "mean_pooling\nnum_tokens=16\nchunk_size=4\ninput=mask\ndevice=cuda:0\npolicy=cached",
                    "flash_attention\nshape=batch=2,q_len=5,head_dim=16\ncausal=true",
                    "attention\nq_len=3\nlogits_soft_cap=none", "mean_pooling_backward\ndim=8"},
          .words = {"\n", "=", "[", "]", ", ", "input=", "none", "flash_attention", "mean_pooling", "attention\n",
                    "scaled_dot_product_attention", "q_len=", "num_seqs=", "shape=", "dtype=", "f16", "i32", "bool"},
          .run = run_call};
}

}  // namespace ejk::fuzz
