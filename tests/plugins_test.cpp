// Plug-in libraries: what is loaded, what is refused and why. tests/plugins/ has one library per case.
#include "ejkernel/runtime/plugins.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "ejkernel/core/environment.h"
#include "ejkernel/ejkernel.h"

namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
namespace fs = std::filesystem;

std::string built(const std::string& name) { return std::string(EJK_BINARY_DIR) + "/plugins/" + name + ".so"; }

bool has_kernel(std::string_view operation, std::string_view name) {
  const auto& kernels = ejk::KernelRegistry::instance().find(operation)->kernels;
  return std::any_of(kernels.begin(), kernels.end(), [&](const auto& kernel) { return kernel->name == name; });
}

/// A folder that only this user can write, whatever the modes of the source tree are.
class Plugins : public ::testing::Test {
 protected:
  Plugins() {
    char pattern[] = "/tmp/ejkernel_plugins_XXXXXX";
    folder = ::mkdtemp(pattern);
  }
  ~Plugins() override { fs::remove_all(folder); }

  /// A copy that only its owner can write.
  std::string copy(const std::string& name, mode_t mode = 0644) const {
    const std::string path = folder + "/" + name + ".so";
    fs::copy_file(built(name), path, fs::copy_options::overwrite_existing);
    ::chmod(path.c_str(), mode);
    return path;
  }

  static auto refused(const std::string& part) { return ThrowsMessage<ejk::InvalidArgument>(HasSubstr(part)); }

  std::string folder;
};

TEST_F(Plugins, add_kernels_and_operations) {
  ASSERT_NO_THROW(ejk::load_plugin(copy("good")));
  EXPECT_EQ(ejk::KernelRegistry::instance().find("flash_attention")->kernels.front()->name, "zeros");
  const ejk::Array x = ejk::Array::zeros(ejk::DType::f32, {3});
  ejk::set(x, 1, 5);
  const std::vector<ejk::Tensor> inputs = {x};
  const ejk::Executor executor = ejk::create_default_executor();
  EXPECT_EQ(ejk::get(executor("negate", inputs, {})[0], 1), -5);
  const ejk::Array q = ejk::Array::zeros(ejk::DType::f32, {1, 2, 1, 4});
  EXPECT_EQ(ejk::get(ejk::flash_attention({.query = q, .key = q, .value = q}).lse, 0), 0) << "the plug-in's zeros";
}

TEST_F(Plugins, refuse_what_is_no_plugin) {
  EXPECT_THAT([&] { ejk::load_plugin(folder + "/absent.so"); },
              refused("absent.so must be a file, got No such file or directory; correct the path"));
  EXPECT_THAT([&] { ejk::load_plugin(folder); }, refused("must be a regular file, got something else"));
  const std::string text = folder + "/text.so";
  std::ofstream(text) << "no library\n";
  ::chmod(text.c_str(), 0600);
  EXPECT_THAT([&] { ejk::load_plugin(text); }, refused("must be a library that loads, got"));
  EXPECT_THAT([&] { ejk::load_plugin(copy("no_plugin")); }, refused("must export ejk_plugin_abi, got no such symbol"));
  EXPECT_THAT([&] { ejk::load_plugin(copy("no_entry_point")); }, refused("must export ejk_plugin_register"));
  EXPECT_THAT([&] { ejk::load_plugin(copy("other_version")); },
              ThrowsMessage<ejk::InvalidArgument>(AllOf(HasSubstr("must be built for interface 1, layout "),
                                                        HasSubstr("got interface 99, layout 00001234; rebuild it"))));
}

TEST_F(Plugins, a_registration_that_throws_leaves_nothing_behind) {
  EXPECT_THAT(
      [&] { ejk::load_plugin(copy("throws")); },
      refused("must register without throwing, got the exception 'flash_attention: kernel name 'lost' must be new"));
  EXPECT_FALSE(has_kernel("flash_attention", "lost"));
  EXPECT_THAT([&] { ejk::load_plugin(copy("throws_anything")); }, refused("got an exception of unknown type"));
  EXPECT_THAT(
      [&] { ejk::load_plugin(copy("other_signature")); },
      refused("field 2 of kernel 'stale' must be 'input value: @query[batch, kv_len, num_kv_heads, value_dim]"));
  EXPECT_FALSE(has_kernel("flash_attention", "stale"));
  const ejk::Array q = ejk::Array::zeros(ejk::DType::f32, {1, 2, 1, 4});
  EXPECT_NO_THROW(ejk::flash_attention({.query = q, .key = q, .value = q})) << "the library stays usable";
}

TEST_F(Plugins, refuse_files_that_others_can_write) {
  EXPECT_THAT(
      [&] { ejk::load_plugin(copy("good", 0664)); },
      refused("good.so must be writable by its owner alone, got " + folder + "/good.so with mode 664; run chmod go-w"));
  EXPECT_THAT([&] { ejk::load_plugin(copy("good", 0646)); }, refused("with mode 646"));
  const std::string link = folder + "/link.so";
  fs::create_symlink("good.so", link);
  EXPECT_THAT([&] { ejk::load_plugin(link); }, refused("got " + folder + "/good.so with mode 646"))
      << "a link does not hide what it leads to";
}

TEST_F(Plugins, refuse_folders_that_others_can_write) {
  const std::string path = copy("no_plugin");
  ::chmod(folder.c_str(), 0777);
  EXPECT_THAT([&] { ejk::load_plugin(path); }, refused("got " + folder + " with mode 777; run chmod go-w " + folder));
  ::chmod(folder.c_str(), 01777);
  EXPECT_THAT([&] { ejk::load_plugin(path); }, refused("must export ejk_plugin_abi"))
      << "sticky: nobody can replace it";
}

TEST_F(Plugins, refuse_files_of_other_users) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give a file away";
  const std::string path = copy("good");
  ASSERT_EQ(::chown(path.c_str(), 4242, 4242), 0);
  EXPECT_THAT([&] { ejk::load_plugin(path); },
              refused("must be reached only through what belongs to this user or root, got " + path + " of user 4242"));
}

/// What EJKERNEL_PLUGINS does can only be seen in a new process: a threadsafe death test runs its statement in one.
class PluginsOfTheEnvironment : public Plugins {
 protected:
  PluginsOfTheEnvironment() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }

  static void use(const std::string& paths) {
    ::setenv("EJKERNEL_PLUGINS", paths.c_str(), 1);
    ::setenv("EJKERNEL_LOG", "error", 1);
    ejk::environment::reload();
  }
  /// Prints what a test wants to see of the registry, and ends the process well.
  [[noreturn]] static void show_and_exit() {
    for (int twice = 0; twice < 2; ++twice) {
      const ejk::Array q = ejk::Array::zeros(ejk::DType::f32, {1, 2, 1, 4});
      ejk::flash_attention({.query = q, .key = q, .value = q});
    }
    std::fprintf(stderr, "first kernel %s;",
                 ejk::KernelRegistry::instance().find("flash_attention")->kernels[0]->name.c_str());
    for (const ejk::PluginReport& report : ejk::plugin_reports())
      std::fprintf(stderr, "%d%s;", static_cast<int>(report.code), report.error.empty() ? " loaded" : " refused");
    std::exit(0);
  }
};

TEST_F(PluginsOfTheEnvironment, are_loaded_at_the_first_call) {
  const std::string good = copy("good");
  EXPECT_EXIT(use(good); show_and_exit(), ::testing::ExitedWithCode(0), "^first kernel zeros;0 loaded;$");
}

TEST_F(PluginsOfTheEnvironment, that_fail_are_logged_once_and_left_out) {
  const std::string throws = copy("throws"), good = copy("good"), version = copy("other_version");
  EXPECT_EXIT(use(throws + ":" + good + ":" + version);
              show_and_exit(), ::testing::ExitedWithCode(0),
              "^ejkernel: error: plug-in: [^\n]*throws.so must register without throwing[^\n]*\n"
              "ejkernel: error: plug-in: [^\n]*other_version.so must be built for[^\n]*\n"
              "first kernel zeros;1 refused;0 loaded;1 refused;$");
}

TEST_F(PluginsOfTheEnvironment, are_loaded_once_by_many_threads) {
  const std::string good = copy("good");
  const auto all_at_once = [&] {
    use(good);
    std::vector<std::thread> threads;
    for (int i = 0; i < 8; ++i)
      threads.emplace_back([] {
        if (!has_kernel("flash_attention", "zeros")) std::abort();  // every first call sees the plug-in
      });
    for (std::thread& thread : threads) thread.join();
    show_and_exit();
  };
  EXPECT_EXIT(all_at_once(), ::testing::ExitedWithCode(0), "first kernel zeros;0 loaded;$");
}

}  // namespace
