// T-30, T-35, T-37: the store among processes that are killed, that start together, and among other environments.
#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <map>
#include <memory>
#include <thread>

#include "ejkernel/core/store.h"
#include "ejkernel/ops/flash_attention/flash_attention.h"
#include "ejkernel/platform/cuda/cubin_store.h"
#include "ejkernel/runtime/config_store.h"
#include "ejkernel/runtime/kernel_sources.h"
#include "ejkernel/runtime/plan.h"
#include "ejkernel/testing/random.h"
#include "ejkernel/testing/temporary_folder.h"
#include "tools/table/rows.h"
#include "tools/table/store_trials.h"

namespace ejk::testing {
namespace {

namespace fs = std::filesystem;

int64_t sequence_of(const std::string& value) { return std::stoll(value); }

int64_t temporaries_below(const fs::path& root) {
  int64_t count = 0;
  if (fs::exists(root))
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(root))
      count += entry.path().extension() == ".tmp";
  return count;
}

// ---- T-30 ----

constexpr int64_t kKeys = 8;

struct Committed {
  int64_t key, sequence;
};

/// A writer that never stops by itself; it tells what was committed.
[[noreturn]] void write_until_killed(const std::string& root, int64_t first_sequence, int told) {
  const Store store(root);
  for (int64_t sequence = first_sequence;; ++sequence) {
    const Committed committed = {sequence % kKeys, sequence};
    if (!store.put(key_of(committed.key), {.value = value_of(sequence), .provenance = ""})) _exit(1);
    if (write(told, &committed, sizeof committed) != sizeof committed) _exit(1);
  }
}

/// Starts a writer, kills it after `delay`, and brings `newest` up to date with what it told; returns how much that
/// was.
int64_t kill_a_writer(const std::string& root, std::chrono::microseconds delay, std::map<int64_t, int64_t>& newest,
                      int64_t& next_sequence) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("no pipe");
  const pid_t child = fork();
  if (child == 0) write_until_killed(root, next_sequence, ends[1]);
  close(ends[1]);
  std::this_thread::sleep_for(delay);
  kill(child, SIGKILL);
  int status = 0;
  waitpid(child, &status, 0);
  if (WIFEXITED(status)) throw std::runtime_error("a writer could not put its record");
  int64_t count = 0;
  for (Committed told; read(ends[0], &told, sizeof told) == sizeof told; ++count) {
    newest[told.key] = told.sequence;
    next_sequence = std::max(next_sequence, told.sequence);
  }
  close(ends[0]);
  next_sequence += 2;  // one more may have been written and not told
  return count;
}

/// Of a store that others have used; the very first makes its folders.
std::chrono::microseconds time_of_a_first_put(const std::string& root) {
  const auto began = std::chrono::steady_clock::now();
  Store(root).put(key_of(kKeys), {.value = value_of(0), .provenance = ""});
  return std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() - began);
}

/// What a new process sees: every committed record, or one that was written after it.
std::string judge_after_kill(const std::string& root, const std::map<int64_t, int64_t>& newest) {
  const Store reopened(root);
  for (const auto& [key, sequence] : newest) {
    const auto record = reopened.find(key_of(key));
    if (!record) return fmt::format("key {}: the committed value {} is lost", key, sequence);
    const int64_t found = sequence_of(record->value);
    if (record->value != value_of(found) || found < sequence)
      return fmt::format("key {}: {} was committed, {} is found", key, sequence, found);
  }
  return "";
}

}  // namespace

RowResult killed_writers(const RowRequest& request) {
  const TemporaryFolder scratch;
  const std::string root = scratch / "store";
  // Some die before their first put is done, some after several.
  time_of_a_first_put(root);
  const int64_t longest = 2 * time_of_a_first_put(root).count();
  Random random(request.seed);
  Tally tally;
  std::map<int64_t, int64_t> newest;
  int64_t next_sequence = 0, num_committed = 0, amid_a_write = 0;
  for (int64_t i = 0; i < request.n; ++i) {
    const int64_t before = temporaries_below(root);
    num_committed += kill_a_writer(root, std::chrono::microseconds(random.between(0, longest)), newest, next_sequence);
    amid_a_write += temporaries_below(root) > before;
    tally.add(judge_after_kill(root, newest));
  }
  // A file this young may be a living writer's; then the next process to put anything clears it away.
  std::this_thread::sleep_for(std::chrono::milliseconds(2100));
  const Store reopened(root);
  reopened.put(key_of(kKeys), {.value = "1", .provenance = ""});
  const int64_t orphans = temporaries_below(root);
  int64_t unreadable = 0;
  reopened.for_each([&](const StoredRecord& stored) { unreadable += stored.state != RecordState::good; });
  RowResult result = tally.result();
  result.failures += orphans + unreadable;
  if (num_committed == 0 || amid_a_write == 0) {
    ++result.failures;
    result.notes.push_back("no writer was killed after a record, or none amid one");
  }
  result.figures = {{"kills_amid_a_write", static_cast<double>(amid_a_write)},
                    {"committed", static_cast<double>(num_committed)},
                    {"orphans", static_cast<double>(orphans)},
                    {"unreadable", static_cast<double>(unreadable)}};
  return result;
}

// ---- T-35 ----

namespace {

constexpr int kProcesses = 16;

[[noreturn]] void put_keys(const std::string& root, int process, int64_t keys, int start) {
  char byte;
  if (read(start, &byte, 1) != 0) _exit(2);  // ends when the parent closes its end: all start together
  const Store store(root);
  bool kept = true;
  for (int64_t i = 0; i < keys; ++i) {
    const int64_t number = process * keys + i;
    kept = store.put(key_of(number), {.value = value_of(number), .provenance = ""}) && kept;
  }
  _exit(kept ? 0 : 1);
}

}  // namespace

RowResult sixteen_processes(const RowRequest& request) {
  const TemporaryFolder scratch;
  const std::string root = scratch / "store";
  const int64_t keys = request.n / kProcesses;
  int start[2];
  if (pipe2(start, O_CLOEXEC) != 0) throw std::runtime_error("no pipe");
  std::vector<pid_t> children;
  for (int process = 0; process < kProcesses; ++process) {
    children.push_back(fork());
    if (children.back() == 0) {
      close(start[1]);
      put_keys(root, process, keys, start[0]);
    }
  }
  close(start[1]);
  close(start[0]);
  Tally tally;
  for (const pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    if (status != 0) tally.note("a process could not put every record");
  }
  const Store store(root);
  for (int64_t i = 0; i < keys * kProcesses; ++i) {
    const auto record = store.find(key_of(i));
    tally.add(record && record->value == value_of(i) ? "" : fmt::format("key {} is lost", i));
  }
  RowResult result = tally.result();
  result.figures["surviving"] = static_cast<double>(result.n - result.failures);
  return result;
}

// ---- T-37 ----

namespace {

/// What a tuned config is for: as this process would keep it, but for what a test changes.
struct Tuned {
  std::string device = "cpu|AMD EPYC 9575F|x86_64 avx3_zen4|2";
  int operation_revision = 1, kernel_revision = 1;
  std::string kernel = "cpu";
  std::string_view file = "ejkernel/ops/flash_attention/flash_attention_cpu.cpp";  ///< whose sources' digest counts
  int64_t q_len = 64;

  RecordKey key() const {
    const Tensor query(nullptr, DType::f32, {1, q_len, 2, 64}), rest(nullptr, DType::f32, {1, 64, 2, 64});
    const Plan made = plan<FlashAttention>({.query = query, .key = rest, .value = rest}, {},
                                           {.kernel = "cpu", .policy = Policy{.autotune = false}});
    ChooseRequest request = made.request();
    Operation declaration = *request.operation->declaration;
    declaration.revision = operation_revision;
    request.operation = std::make_shared<RegisteredOperation>(RegisteredOperation{.declaration = &declaration});
    KernelInfo info = made.kernel();
    info.name = kernel, info.revision = kernel_revision, info.file = file;
    return config_record_key(request, info, device);
  }
};

std::vector<RecordKey> tuned_keys() {
  std::vector<Tuned> all = {{}};
  // Some differ only in what a folder's name cannot show, or read alike when joined.
  for (const char* device : {"cuda|AMD EPYC 9575F|x86_64 avx3_zen4|2", "cpu|AMD EPYC 9575|x86_64 avx3_zen4|2",
                             "cpu|AMD EPYC 9575F|x86_64 avx3|2", "cpu|AMD EPYC 9575F|x86_64 avx3_zen4|22",
                             "cpu|AMD EPYC 9575F|x86_64 avx3_zen4|2|shared 49152",
                             "cpu|AMD EPYC 9575F|x86_64_avx3_zen4|2", "cpu|AMD EPYC|9575F|x86_64 avx3_zen4|2", ""})
    all.push_back({.device = device});
  for (const int revision : {2, 11, 0}) all.push_back({.operation_revision = revision});
  for (const int revision : {2, 11, 0}) all.push_back({.kernel_revision = revision});
  for (const char* kernel : {"cpu_fast", "cpu@1", "CPU", ""}) all.push_back({.kernel = kernel});
  for (const KernelSources& sources : kernel_sources())
    if (sources.file.find("flash_attention/") != std::string_view::npos && sources.file != Tuned().file)
      all.push_back({.file = sources.file});
  all.push_back({.file = "of a plug-in, which has no digest"});
  for (const int64_t length : {65, 128}) all.push_back({.q_len = length});
  std::vector<RecordKey> keys;
  for (const Tuned& tuned : all) keys.push_back(tuned.key());
  return keys;
}

/// What a compiled kernel is for.
struct CompiledFor {
  std::string_view file = "ejkernel/platform/cuda/device/empty.cu";
  std::string instance = "ejk::empty", architecture = "sm_90a", compiler = "13.0";

  RecordKey key() const { return cuda::cubin_key({.file = file, .instance = instance}, architecture, compiler); }
};

std::vector<RecordKey> compiled_keys() {
  std::vector<CompiledFor> all = {{}};
  all.push_back({.file = "ejkernel/ops/flash_attention/flash_attention_sm90.cu"});
  for (const char* compiler : {"12.9", "13.00", "13", "1.30"}) all.push_back({.compiler = compiler});
  for (const char* architecture : {"sm_90", "sm_80", "sm-90a", "sm_90a|", "sm_90a/"})
    all.push_back({.architecture = architecture});
  for (const char* instance : {"ejk::empty<1>", "ejk::Empty", " ejk::empty"}) all.push_back({.instance = instance});
  std::vector<RecordKey> keys;
  for (const CompiledFor& compiled : all) keys.push_back(compiled.key());
  return keys;
}

}  // namespace

/// Each key in turn is what the store holds: no other may find it, nor take its place.
RowResult changed_environments(const RowRequest&) {
  const TemporaryFolder scratch(Medium::memory);
  std::vector<RecordKey> keys = tuned_keys();
  for (RecordKey& key : compiled_keys()) keys.push_back(std::move(key));
  Tally tally;
  int64_t stale_hits = 0, deleted = 0;
  const auto judge = [&](bool is_wrong, int64_t& count, const RecordKey& key, std::string_view what) {
    count += is_wrong;
    tally.add(is_wrong ? fmt::format("{} {}: {}", key.environment, key.text, what) : "");
  };
  const auto value_at = [](size_t i) { return fmt::format("value {}", i); };
  for (size_t present = 0; present < keys.size(); ++present) {
    const Store store(scratch / std::to_string(present));
    store.put(keys[present], {.value = value_at(present), .provenance = ""});
    for (size_t i = 0; i < keys.size(); ++i)
      if (i != present) judge(store.find(keys[i]).has_value(), stale_hits, keys[i], "a stale hit");
    // The other environments make their own; some of them share a folder with the first.
    const std::string before = read_bytes(store.path_of(keys[present]));
    for (size_t i = 0; i < keys.size(); ++i)
      if (i != present) store.put(keys[i], {.value = value_at(i), .provenance = ""});
    judge(read_bytes(store.path_of(keys[present])) != before, deleted, keys[present], "the record is not what it was");
    for (size_t i = 0; i < keys.size(); ++i) {
      const auto found = store.find(keys[i]);
      judge(!found || found->value != value_at(i), deleted, keys[i], "its own record is not found");
    }
  }
  RowResult result = tally.result();
  result.figures = {{"environments", static_cast<double>(keys.size())},
                    {"stale_hits", static_cast<double>(stale_hits)},
                    {"records_deleted", static_cast<double>(deleted)}};
  return result;
}

}  // namespace ejk::testing
