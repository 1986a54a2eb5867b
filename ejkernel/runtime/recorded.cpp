#include "ejkernel/runtime/recorded.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "ejkernel/core/environment.h"
#include "ejkernel/core/error.h"
#include "ejkernel/core/log.h"
#include "ejkernel/core/store_files_internal.h"
#include "ejkernel/core/validate.h"
#include "ejkernel/runtime/recorded_internal.h"
#include "ejkernel/runtime/registry.h"
#include "ejkernel/runtime/timer.h"

namespace ejk {

/// `untold` is what the file does not say yet of `all`.
struct recording::Recorded {
  Invocation all;
  int64_t untold_count = 0;
  double untold_seconds = 0;
  int64_t count_here = 0;  ///< since the file was named
  bool is_told = false;
};

std::atomic<recording::State> recording::state{State::unknown};

namespace {

using recording::Recorded;
using recording::State;

thread_local int num_unrecorded = 0;

// ---- calls ----

/// A plan's call, which has not come yet.
Invocation invocation_of(const Plan& plan) {
  const PlanOptions& asked = plan.options();
  Invocation call{.operation = std::string(plan.operation().name),
                  .inputs = {plan.inputs().begin(), plan.inputs().end()},
                  .params = plan.params(),
                  .options = {.platform = asked.platform, .backend = asked.backend, .kernel = asked.kernel},
                  .count = 0};
  for (Tensor& input : call.inputs) input.data = nullptr;
  return call;
}

/// Everything that tells a call from another one. Of strides that mean the same, none is.
std::string content_of(const Invocation& call) {
  const auto registered = KernelRegistry::instance().find(call.operation);
  const PlanOptions& asked = call.options;
  std::string text = fmt::format("{} {} {} {}", call.operation, asked.platform ? name(*asked.platform) : "",
                                 asked.backend ? name(*asked.backend) : "", asked.kernel);
  for (const Tensor& input : call.inputs)
    text += fmt::format("\n{} {} {}", to_string(input), is_contiguous(input) ? "" : to_string(input.strides),
                        to_string(input.device));
  for (const ParamField& field : registered->declaration->params)
    text += "\n" + to_string(field.get(call.params.data()));
  return text;
}

/// Numbers that say how long something is or where it lies, not what is computed with.
bool is_index(DType dtype) { return dtype == DType::i32 || dtype == DType::i64; }

std::vector<int64_t> sample_of(const Tensor& t) {
  const int64_t count = t.num_elements(), size = bits(t.dtype) / 8;
  if (!is_index(t.dtype) || t.device.kind != DeviceKind::cpu || t.data == nullptr || count > kMaxSampleBytes / size)
    return {};
  std::vector<int64_t> values(static_cast<size_t>(count));
  for (int64_t n = 0; n < count; ++n) {
    const int64_t at = element_offset(t, n);
    values[static_cast<size_t>(n)] = t.dtype == DType::i32 ? t.as<const int32_t>()[at] : t.as<const int64_t>()[at];
  }
  return values;
}

std::vector<std::vector<int64_t>> samples_of(std::span<const Tensor> inputs) {
  std::vector<std::vector<int64_t>> samples;
  for (const Tensor& input : inputs) samples.push_back(sample_of(input));
  return samples;
}

/// Distinct calls in the order in which they came.
class Calls {
 public:
  std::shared_ptr<Recorded> find(const std::string& content) const {
    const auto found = by_content_.find(content);
    return found == by_content_.end() ? nullptr : found->second;
  }
  std::shared_ptr<Recorded> add(std::string content, Invocation call) {
    auto recorded = std::make_shared<Recorded>(Recorded{.all = std::move(call)});
    in_order_.push_back(recorded);
    by_content_.emplace(std::move(content), recorded);
    return recorded;
  }
  const std::vector<std::shared_ptr<Recorded>>& in_order() const { return in_order_; }
  void clear() {
    in_order_.clear();
    by_content_.clear();
  }

 private:
  std::vector<std::shared_ptr<Recorded>> in_order_;
  std::unordered_map<std::string, std::shared_ptr<Recorded>> by_content_;
};

// ---- the recorder ----

class Recorder {
 public:
  static Recorder& instance() {
    static auto* recorder = new Recorder;  // never destroyed: calls may come while the process exits
    return *recorder;
  }

  bool is_on() {
    if (recording::state.load() == State::unknown) follow_environment();
    return recording::state.load() == State::on;
  }
  /// Another file begins with nothing: neither what an earlier one was told, nor what came before.
  void start(const std::string& file) {
    stop();
    const std::lock_guard lock(mutex_);
    for (const auto& recorded : calls_.in_order())
      recorded->untold_count = recorded->count_here = 0, recorded->untold_seconds = 0, recorded->is_told = false;
    file_ = file;
    recording::state = State::on;
  }
  void stop() {
    std::string file, lines;
    {
      const std::lock_guard lock(mutex_);
      recording::state = State::off;
      std::swap(file, file_);
      for (const auto& recorded : calls_.in_order())
        if (!file.empty() && recorded->untold_count > 0) lines += tell(*recorded);
    }
    append(file, lines);
  }

  /// Null when there is no room for another call.
  std::shared_ptr<Recorded> find_or_add(const Plan& plan, std::span<const Tensor> inputs) {
    Invocation call = invocation_of(plan);
    std::string content = content_of(call);
    const std::lock_guard lock(mutex_);
    if (auto known = calls_.find(content)) return known;
    if (calls_.in_order().size() >= kMaxInvocations) {
      ++num_dropped_;
      return nullptr;
    }
    call.samples = samples_of(inputs);
    return calls_.add(std::move(content), std::move(call));
  }

  void count(Recorded& recorded, double seconds) {
    std::string file, line;
    {
      const std::lock_guard lock(mutex_);
      ++recorded.all.count, ++recorded.untold_count, ++recorded.count_here;
      recorded.all.seconds += seconds, recorded.untold_seconds += seconds;
      if (file_.empty() || !std::has_single_bit(static_cast<uint64_t>(recorded.count_here))) return;
      file = file_;
      line = tell(recorded);
    }
    append(file, line);
  }

  std::vector<Invocation> all() {
    const std::lock_guard lock(mutex_);
    std::vector<Invocation> invocations;
    for (const auto& recorded : calls_.in_order())
      if (recorded->all.count > 0) invocations.push_back(recorded->all);  // none: its first run has not ended
    return invocations;
  }
  int64_t num_dropped() {
    const std::lock_guard lock(mutex_);
    return num_dropped_;
  }
  void clear() {
    const std::lock_guard lock(mutex_);
    calls_.clear();
    num_dropped_ = 0;
  }

 private:
  /// Until somebody starts or stops it by hand.
  void follow_environment() {
    const std::lock_guard lock(mutex_);
    if (recording::state.load() != State::unknown) return;
    file_ = environment::ops_record_file();
    recording::state = environment::ops_record() ? State::on : State::off;
  }

  /// What the file is to be told of a call now.
  static std::string tell(Recorded& recorded) {
    Invocation news = recorded.all;
    news.count = std::exchange(recorded.untold_count, 0);
    news.seconds = std::exchange(recorded.untold_seconds, 0);
    if (std::exchange(recorded.is_told, true)) news.samples.clear();
    return to_json(news) + "\n";
  }

  /// In one piece, so that lines of several processes do not mix. One that fails is the last, for half a line may stand
  /// there.
  void append(const std::string& path, const std::string& lines) {
    if (lines.empty()) return;
    const store_files::File file(path, store_files::Access::append);
    if (file.is_open() && file.write(lines)) return;
    const std::string why = std::strerror(errno);
    log_once("recording " + path, LogLevel::warning,
             fmt::format("recorded calls cannot be written to {}: {}; they are kept in memory only", path, why));
    const std::lock_guard lock(mutex_);
    if (file_ == path) file_.clear();
  }

  std::mutex mutex_;
  Calls calls_;
  std::string file_;
  int64_t num_dropped_ = 0;
};

}  // namespace

void recording::settle() { Recorder::instance().is_on(); }

void recording::Run::begin(const Plan& plan, std::span<const Tensor> inputs) noexcept try {
  // In this order: a forked worker, which tries configs, takes no lock.
  if (num_unrecorded > 0 || plan.options().config || !Recorder::instance().is_on()) return;
  recorded_ = Recorder::instance().find_or_add(plan, inputs);
  has_time_ = plan.device().kind == DeviceKind::cpu;
  began_ = now_seconds();
} catch (...) {  // recording never fails a call
}

void recording::Run::end() noexcept try {
  Recorder::instance().count(*recorded_, has_time_ ? now_seconds() - began_ : 0);
} catch (...) {  // nor here
}

void start_recording(const std::string& file) { Recorder::instance().start(file); }
void stop_recording() { Recorder::instance().stop(); }

void record_invocation(const Plan& plan, std::span<const Tensor> inputs) {
  if (!inputs.empty()) check_buffers(plan.operation(), inputs, {}, {}, plan.inputs());
  if (const auto recorded = Recorder::instance().find_or_add(plan, inputs)) Recorder::instance().count(*recorded, 0);
}

std::vector<Invocation> get_invocations() { return Recorder::instance().all(); }
int64_t num_dropped_invocations() { return Recorder::instance().num_dropped(); }
void clear_invocations() { Recorder::instance().clear(); }

Unrecorded::Unrecorded() { ++num_unrecorded; }
Unrecorded::~Unrecorded() { --num_unrecorded; }

// ---- files ----

void save_invocations(const std::string& file, std::span<const Invocation> invocations) {
  std::string lines;
  for (const Invocation& call : invocations) lines += to_json(call) + "\n";
  if (const int error = store_files::publish(file, {lines}); error != 0)
    throw InvalidArgument(fmt::format("save_invocations: {} must be a file that can be written, got '{}'; name another",
                                      file, std::strerror(error)));
}

std::string recording::contents_of(std::string_view reader, const std::string& path, std::string_view fix) {
  constexpr int64_t kMost = int64_t{256} << 20;
  const store_files::File file(path, store_files::Access::read_named);
  const auto info = file.is_open() ? file.info() : std::nullopt;
  if (!info || !S_ISREG(info->st_mode))
    throw_invalid(reader, path, "be a file that can be read", info ? "something that is none" : std::strerror(errno),
                  fix);
  if (info->st_size > kMost)
    throw_invalid(reader, path, fmt::format("take no more than {} MiB", kMost >> 20),
                  fmt::format("{} MiB", info->st_size >> 20), fix);
  auto text = file.read(static_cast<size_t>(info->st_size));
  if (!text) throw_invalid(reader, path, "be readable to its end", std::strerror(errno), "try again");
  return *std::move(text);
}

static Invocation read_line(const std::string& path, int number, std::string_view line) {
  try {
    return invocation_from_json(line);
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(fmt::format("{}:{}: {}", path, number, error.what()));
  }
}

std::vector<Invocation> load_invocations(const std::string& path) {
  constexpr size_t kMost = 16 * kMaxInvocations;  // of several processes
  const std::string text =
      recording::contents_of("load_invocations", path, "record one with EJKERNEL_OPS_RECORD into an empty file");
  Calls calls;
  int number = 0;
  for (size_t begin = 0, end = 0; begin < text.size(); begin = end + 1) {
    end = std::min(text.find('\n', begin), text.size());
    Invocation call;
    try {
      call = read_line(path, ++number, std::string_view(text).substr(begin, end - begin));
    } catch (const InvalidArgument& error) {
      if (end < text.size()) throw;
      log(LogLevel::warning, fmt::format("{}; the line has no end and is left out", error.what()));
      break;  // whoever wrote it was stopped
    }
    std::string content = content_of(call);
    if (const auto known = calls.find(content)) {
      known->all.count += call.count;
      known->all.seconds += call.seconds;
      if (!known->all.has_samples()) known->all.samples = std::move(call.samples);
    } else {
      calls.add(std::move(content), std::move(call));
    }
    if (calls.in_order().size() > kMost)
      throw_invalid("load_invocations", path, fmt::format("hold no more than {} distinct calls", kMost), "more",
                    "record fewer at a time");
  }
  std::vector<Invocation> all;
  for (const auto& recorded : calls.in_order()) all.push_back(recorded->all);
  return all;
}

}  // namespace ejk
