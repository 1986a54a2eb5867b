#include "ejkernel/platform/cuda/nvrtc.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <glob.h>
#include <link.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <mutex>

#include "ejkernel/core/environment.h"
#include "ejkernel/core/error.h"
#include "ejkernel/core/installation.h"
#include "ejkernel/platform/cuda/driver.h"
#include "ejkernel/platform/cuda/symbols.h"

namespace ejk::cuda {
namespace {

namespace fs = std::filesystem;
using Paths = std::vector<std::string>;

constexpr int kOldestMajor = 12;
constexpr int kNewestMajor = 13;  // where there is no driver to say

std::string library_name(int major) { return fmt::format("libnvrtc.so.{}", major); }

/// Existing files that a shell pattern names.
Paths matches(const std::string& pattern) {
  glob_t found = {};
  Paths paths;
  if (glob(pattern.c_str(), 0, nullptr, &found) == 0) paths.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  globfree(&found);
  return paths;
}

/// The value of somebody else's variable, when it is an absolute path.
std::string folder_from_environment(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && *value == '/' ? value : "";
}

Paths split(const char* list) {
  Paths parts;
  for (std::string_view rest = list != nullptr ? list : ""; !rest.empty();) {
    const size_t end = std::min(rest.find(':'), rest.size());
    if (rest.front() == '/') parts.emplace_back(rest.substr(0, end));
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return parts;
}

Paths already_loaded(int major) {
  void* library = dlopen(library_name(major).c_str(), RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr) return {};
  const link_map* map = nullptr;
  Paths paths;
  if (dlinfo(library, RTLD_DI_LINKMAP, &map) == 0) paths.emplace_back(map->l_name);
  dlclose(library);
  return paths;
}

/// Folders that hold lib/python3*/site-packages: of this program (unless anyone can add to it, as to /tmp), of the
/// active environments, of the first python3 on the path, of the user and of the system.
Paths python_prefixes() {
  Paths prefixes;
  std::error_code ignored;
  const fs::path above = fs::read_symlink("/proc/self/exe", ignored).parent_path().parent_path();
  if (!anyone_can_add_to(above)) prefixes.push_back(above);
  for (const char* name : {"VIRTUAL_ENV", "CONDA_PREFIX"}) prefixes.push_back(folder_from_environment(name));
  for (const std::string& folder : split(std::getenv("PATH")))
    if (fs::exists(folder + "/python3", ignored)) {
      prefixes.push_back(fs::path(folder).parent_path());
      break;
    }
  const std::string home = folder_from_environment("HOME");
  if (!home.empty()) prefixes.push_back(home + "/.local");
  prefixes.insert(prefixes.end(), {"/usr/local", "/usr"});
  return prefixes;
}

Paths in_python_wheels(int major) {
  Paths roots;
  // A library that a wheel brought stands beside the other wheels.
  Dl_info own = {};
  if (dladdr(reinterpret_cast<void*>(&library_name), &own) != 0 && own.dli_fname[0] == '/')
    roots.push_back(fs::path(own.dli_fname).parent_path().parent_path());
  for (const std::string& prefix : python_prefixes())
    if (!prefix.empty())
      for (const char* packages : {"site-packages", "dist-packages"})
        for (const std::string& root : matches(prefix + "/lib/python3*/" + packages)) roots.push_back(root);
  // One wheel holds one library of CUDA 12, and all of a later major version share a folder.
  const std::string folder = major == 12 ? "cuda_nvrtc" : fmt::format("cu{}", major);
  Paths paths;
  for (const std::string& root : roots)
    paths.push_back(fmt::format("{}/nvidia/{}/lib/{}", root, folder, library_name(major)));
  return paths;
}

Paths in_toolkits(int major) {
  Paths roots;
  for (const char* name : {"CUDA_HOME", "CUDA_PATH"}) roots.push_back(folder_from_environment(name));
  roots.emplace_back("/usr/local/cuda");
  // The newest of several stands last.
  Paths versioned = matches(fmt::format("/usr/local/cuda-{}*", major));
  std::reverse(versioned.begin(), versioned.end());
  roots.insert(roots.end(), versioned.begin(), versioned.end());
  Paths paths;
  for (const std::string& root : roots)
    if (!root.empty()) paths.push_back(root + "/lib64/" + library_name(major));
  return paths;
}

Paths in_system_folders(int major) {
  Paths folders = split(std::getenv("LD_LIBRARY_PATH"));
#if defined(__x86_64__)
  folders.emplace_back("/usr/lib/x86_64-linux-gnu");
#elif defined(__aarch64__)
  folders.emplace_back("/usr/lib/aarch64-linux-gnu");
#endif
  folders.insert(folders.end(), {"/usr/lib64", "/usr/lib"});
  for (std::string& folder : folders) folder += "/" + library_name(major);
  return folders;
}

struct Place {
  const char* name;
  Paths (*paths)(int major);
};
constexpr Place kPlaces[] = {{"already loaded", already_loaded},
                             {"Python's nvidia wheels", in_python_wheels},
                             {"CUDA toolkit", in_toolkits},
                             {"system", in_system_folders}};

/// nullopt when there is no such file.
std::optional<NvrtcFile> file_at(const std::string& path, const char* place) {
  std::error_code failed;
  const std::string resolved = fs::canonical(path, failed);
  struct stat info = {};
  if (failed || stat(resolved.c_str(), &info) != 0 || !S_ISREG(info.st_mode)) return std::nullopt;
  return NvrtcFile{path, place,
                   fmt::format("{} {} {}.{}", resolved, info.st_size, info.st_mtim.tv_sec, info.st_mtim.tv_nsec)};
}

struct Found {
  NvrtcSearch search;
  std::once_flag loading;
  Nvrtc nvrtc;
};

std::mutex searching;
std::atomic<Found*> found{nullptr};

/// Under the lock of `searching`. None is ever destroyed: references to earlier ones stay valid.
Found& add_found() {
  static auto* all = new std::vector<std::unique_ptr<Found>>;
  return *all->emplace_back(std::make_unique<Found>());
}

Found& find() {
  Found* now = found.load(std::memory_order_acquire);
  if (now != nullptr) return *now;
  const std::lock_guard lock(searching);
  if (found.load() == nullptr) {
    Found& fresh = add_found();
    fresh.search = search_nvrtc();
    found.store(&fresh, std::memory_order_release);
  }
  return *found.load();
}

}  // namespace

Nvrtc load_nvrtc(const std::string& path) {
  void* library = dlopen(path.c_str(), RTLD_LAZY | RTLD_LOCAL);
  if (library == nullptr) throw Unsupported(fmt::format("nvrtc: {} does not load: {}", path, loader_error()));
  Nvrtc loaded = {.path = path};
  const auto missing = load_symbols(library, loaded.api);
  if (!missing.empty()) throw Unsupported(fmt::format("nvrtc: {} lacks {}", path, fmt::join(missing, ", ")));
  loaded.api.version(&loaded.major, &loaded.minor);
  if (loaded.major < kOldestMajor)
    throw Unsupported(fmt::format("nvrtc: {} is version {}.{}, and {} is the oldest that the library works with", path,
                                  loaded.major, loaded.minor, kOldestMajor));
  return loaded;
}

std::vector<int> usable_majors() {
  const int driver_version = driver_report().version;
  std::vector<int> majors;
  for (int major = driver_version > 0 ? driver_version / 1000 : kNewestMajor; major >= kOldestMajor; --major)
    majors.push_back(major);
  return majors;
}

NvrtcSearch search_nvrtc() {
  NvrtcSearch search;
  if (const std::string& named = environment::nvrtc(); !named.empty()) {
    search.found = file_at(named, "EJKERNEL_NVRTC");
    search.looked.push_back(
        fmt::format("EJKERNEL_NVRTC: {}{}", named, search.found ? "" : ", where there is no such file"));
    return search;
  }
  for (const int major : usable_majors())
    for (const Place& place : kPlaces) {
      const Paths paths = place.paths(major);
      for (const std::string& path : paths)
        if (search.found = file_at(path, place.name); search.found) {
          search.looked.push_back(fmt::format("{}: {}", place.name, path));
          return search;
        }
      search.looked.push_back(paths.empty() ? fmt::format("{}: no {}", place.name, library_name(major))
                                            : fmt::format("{}: not {}", place.name, fmt::join(paths, ", ")));
    }
  return search;
}

const Nvrtc& nvrtc() {
  Found& now = find();
  if (!now.search.found)
    throw Unsupported(
        fmt::format("nvrtc: CUDA kernels are compiled by NVRTC {} or newer, which is not here; pip install "
                    "nvidia-cuda-nvrtc (nvidia-cuda-nvrtc-cu12 for a CUDA 12 driver), install a CUDA toolkit, or set "
                    "EJKERNEL_NVRTC (looked for: {})",
                    kOldestMajor, fmt::join(now.search.looked, "; ")));
  std::call_once(now.loading, [&] {
    if (now.nvrtc.api.version.address == nullptr) now.nvrtc = load_nvrtc(now.search.found->path);
  });
  return now.nvrtc;
}

const NvrtcFile* nvrtc_file() {
  const Found& now = find();
  return now.search.found ? &*now.search.found : nullptr;
}

void use_nvrtc(const Nvrtc* fake) {
  const std::lock_guard lock(searching);
  Found& fresh = add_found();
  if (fake != nullptr) {
    fresh.nvrtc = *fake;
    fresh.search.found =
        NvrtcFile{fake->path, "use_nvrtc", fmt::format("{} {}.{}", fake->path, fake->major, fake->minor)};
  } else {
    fresh.search = search_nvrtc();
  }
  found.store(&fresh, std::memory_order_release);
}

}  // namespace ejk::cuda
