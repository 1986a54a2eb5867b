#include "ejkernel/runtime/plugins.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>

#include "ejkernel/core/environment.h"
#include "ejkernel/core/log.h"
#include "ejkernel/core/validate.h"

namespace ejk {
namespace {

[[noreturn]] void refuse(const std::string& path, std::string_view expected, std::string_view got,
                         std::string_view fix) {
  throw_invalid("plug-in", path, expected, got, fix);
}

std::string real_path(const std::string& path) {
  const std::unique_ptr<char, decltype(&std::free)> resolved(::realpath(path.c_str(), nullptr), &std::free);
  if (resolved == nullptr) refuse(path, "be a file", std::strerror(errno), "correct the path");
  return resolved.get();
}

/// One file or folder on the way to a plug-in. In a folder with the sticky bit others may add files of their own, but
/// not replace ours.
void check_trusted(const std::string& plugin, const std::string& path, bool is_folder) {
  struct stat info = {};
  if (::stat(path.c_str(), &info) != 0) refuse(plugin, "be readable", std::strerror(errno), "correct the path");
  if (!is_folder && !S_ISREG(info.st_mode)) refuse(plugin, "be a regular file", "something else", "correct the path");
  if (info.st_uid != ::geteuid() && info.st_uid != 0)
    refuse(plugin, "be reached only through what belongs to this user or root",
           fmt::format("{} of user {}", path, info.st_uid), "copy it to a folder of yours");
  const bool others_write = (info.st_mode & (S_IWGRP | S_IWOTH)) != 0;
  if (others_write && !(is_folder && (info.st_mode & S_ISVTX) != 0))
    refuse(plugin, "be writable by its owner alone",
           fmt::format("{} with mode {:o}", path, static_cast<unsigned>(info.st_mode) & 07777u),
           fmt::format("run chmod go-w {}", path));
}

/// The file that may be loaded for `path`. Nobody else can change it between this check and loading it.
std::string trusted_file(const std::string& path) {
  const std::string file = real_path(path);
  check_trusted(path, file, /*is_folder=*/false);
  for (size_t end = file.rfind('/'); end != std::string::npos;
       end = end == 0 ? std::string::npos : file.rfind('/', end - 1))
    check_trusted(path, end == 0 ? "/" : file.substr(0, end), /*is_folder=*/true);
  return file;
}

void* symbol(const std::string& path, void* library, const char* name) {
  void* found = ::dlsym(library, name);
  if (found == nullptr)
    refuse(path, fmt::format("export {}", name), "no such symbol", "write EJK_PLUGIN(registry) { ... } once in it");
  return found;
}

std::string abi_text(uint64_t abi) { return fmt::format("interface {}, layout {:08x}", abi >> 32, abi & 0xffffffffu); }

void load(const std::string& path, KernelRegistry& registry) {
  const std::string file = trusted_file(path);
  void* library = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) refuse(path, "be a library that loads", ::dlerror(), "rebuild it for this system");
  uint64_t abi = 0;
  std::memcpy(&abi, symbol(path, library, "ejk_plugin_abi"), sizeof abi);
  if (abi != kPluginAbi)
    refuse(path, fmt::format("be built for {} (ejkernel {})", abi_text(kPluginAbi), kVersion), abi_text(abi),
           "rebuild it against the installed headers");
  const auto enter = reinterpret_cast<void (*)(KernelRegistry&)>(symbol(path, library, "ejk_plugin_register"));
  // From here on the library stays loaded: what it registers points into it.
  KernelRegistry::Batch batch(registry);
  try {
    enter(registry);
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {
    refuse(path, "register without throwing", fmt::format("the exception '{}'", error.what()), "correct the plug-in");
  } catch (...) {
    refuse(path, "register without throwing", "an exception of unknown type", "correct the plug-in");
  }
  batch.keep();
}

struct Loaded {
  std::mutex mutex;
  std::atomic<bool> done{false};
  std::vector<PluginReport> reports;
};

Loaded& loaded() {
  static auto* state = new Loaded;  // never destroyed: calls may come while the process exits
  return *state;
}

/// A plug-in that asks for the registry while it registers gets it as it is.
thread_local bool loading_on_this_thread = false;

PluginReport try_load(const std::string& path, KernelRegistry& registry) {
  try {
    load(path, registry);
    return {.path = path};
  } catch (const Error& error) {
    log_once("plug-in " + path, LogLevel::error, error.what());
    return {.path = path, .code = error.code(), .error = error.what()};
  }
}

}  // namespace

void load_plugin(const std::string& path) { load(path, KernelRegistry::instance()); }

std::vector<PluginReport> plugin_reports() {
  KernelRegistry::instance();
  const std::lock_guard lock(loaded().mutex);
  return loaded().reports;
}

void load_environment_plugins(KernelRegistry& registry) {
  Loaded& state = loaded();
  if (state.done.load(std::memory_order_acquire) || loading_on_this_thread) return;
  const std::lock_guard lock(state.mutex);
  if (state.done.load(std::memory_order_relaxed)) return;
  const std::vector<std::string>& paths = environment::plugins();  // throws while a variable is malformed
  struct Scope {
    Scope() { loading_on_this_thread = true; }
    ~Scope() { loading_on_this_thread = false; }
  } const scope;
  state.reports.clear();
  for (const std::string& path : paths) state.reports.push_back(try_load(path, registry));
  state.done.store(true, std::memory_order_release);
}

}  // namespace ejk
