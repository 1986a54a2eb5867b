// Records and archives. Their digests keep every change from going further than the header; so where an input's first
// byte is odd, the digests are made to fit the rest of it.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "ejkernel/core/digest.h"
#include "ejkernel/core/record_format_internal.h"
#include "ejkernel/core/store_archive.h"
#include "ejkernel/testing/temporary_folder.h"
#include "tools/fuzz/mutate.h"
#include "tools/fuzz/targets.h"

namespace ejk::fuzz {
namespace {

using record_format::decode;
using record_format::encode;

constexpr size_t kRecordHeader = 56, kArchiveHeader = 40, kIndexEntry = 24;
constexpr size_t kCountAt = 16, kArchiveDigestAt = 24;

const RecordKey kKeys[] = {
    {.environment = "cpu|some processor|avx2|8", .group = "flash_attention", .text = "config of cpu@3 for bf16"},
    {.environment = "cuda|sm_90a", .group = "mean_pooling", .text = "1:2:3"},
    {.environment = "", .group = "", .text = ""}};
const Record kRecords[] = {{.value = R"({"block_q":64,"block_k":128})", .provenance = R"({"how":"tuned"})"},
                           {.value = std::string(100, '\x7f'), .provenance = ""},
                           {.value = "", .provenance = "by hand"}};

void require(bool holds, const char* what) {
  if (!holds) throw std::logic_error(what);
}

bool is_signed(const std::string& input) { return !input.empty() && input[0] % 2 != 0; }
std::string content_of(const std::string& input) { return input.empty() ? input : input.substr(1); }

void run_record(const std::string& input) {
  std::string bytes = content_of(input);
  if (is_signed(input) && bytes.size() >= kRecordHeader) record_format::sign(bytes);
  const record_format::Decoded read = decode(bytes);
  require((read.state == RecordState::good) == read.reason.empty(), "a record is good, or there is a reason");
  if (read.state != RecordState::good) return;
  const record_format::Decoded again = decode(encode(read.key, read.record));
  require(again.state == RecordState::good && again.key == read.key && again.record.value == read.record.value &&
              again.record.provenance == read.record.provenance,
          "a record that was read is written and read again as the same");
}

template <class T>
T number_at(const std::string& bytes, size_t at) {
  T number;
  std::memcpy(&number, bytes.data() + at, sizeof number);
  return number;
}

/// Signs every record that the index names, then header and index.
void sign_archive(std::string& bytes) {
  if (bytes.size() < kArchiveHeader) return;
  const auto count = number_at<uint64_t>(bytes, kCountAt);
  if (count > (bytes.size() - kArchiveHeader) / kIndexEntry) return;
  const size_t head = kArchiveHeader + count * kIndexEntry;
  for (size_t at = head, entry = 0; entry < count; ++entry) {
    const auto size = number_at<uint64_t>(bytes, kArchiveHeader + entry * kIndexEntry + sizeof(Digest));
    if (size > bytes.size() - at) break;
    std::string record = bytes.substr(at, size);
    if (size >= kRecordHeader) record_format::sign(record);
    bytes.replace(at, size, record);
    at += size;
  }
  std::memset(bytes.data() + kArchiveDigestAt, 0, sizeof(Digest));
  const Digest digest = digest_of(std::string_view(bytes).substr(0, head));
  std::memcpy(bytes.data() + kArchiveDigestAt, &digest, sizeof digest);
}

/// A file in memory, written anew for each input.
class ArchiveFile {
 public:
  ~ArchiveFile() { close(descriptor_); }
  const std::string& path() const { return path_; }
  void hold(const std::string& bytes) const {
    require(ftruncate(descriptor_, 0) == 0 &&
                pwrite(descriptor_, bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()),
            "the archive's file can be written");
  }

 private:
  testing::TemporaryFolder folder_{testing::Medium::memory};
  std::string path_ = folder_ / "archive";
  int descriptor_ = open(path_.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, S_IRUSR | S_IWUSR);
};

void run_archive(const std::string& input) {
  static const ArchiveFile file;
  std::string bytes = content_of(input);
  if (is_signed(input)) sign_archive(bytes);
  file.hold(bytes);
  std::string why;
  const auto archive = Archive::open(file.path(), why);
  require((archive != nullptr) == why.empty(), "an archive opens, or there is a reason");
  if (archive == nullptr) return;
  archive->for_each([&](const StoredRecord& stored) {
    if (stored.state != RecordState::good) return;
    const auto found = archive->find(stored.key);
    require(found && found->value == stored.record.value, "a good record of an archive is found there");
  });
}

std::string archive_of(size_t count) {
  const testing::TemporaryFolder folder(testing::Medium::memory);
  ArchiveBuilder builder;
  for (size_t n = 0; n < count; ++n) builder.add(kKeys[n], kRecords[n]);
  require(builder.write(folder / "archive"), "a seed can be written");
  std::string bytes(kLongestInput, '\0');
  const int descriptor = open((folder / "archive").c_str(), O_RDONLY | O_CLOEXEC);
  bytes.resize(static_cast<size_t>(std::max<ssize_t>(0, read(descriptor, bytes.data(), bytes.size()))));
  close(descriptor);
  return bytes;
}

}  // namespace

Target record_target() {
  Target target{.name = "record", .seeds = {}, .words = {"0:", "1:", "18446744073709551615:"}, .run = run_record};
  for (size_t n = 0; n < std::size(kKeys); ++n)
    for (const char first : {'0', '1'}) target.seeds.push_back(first + encode(kKeys[n], kRecords[n]));
  return target;
}

Target archive_target() {
  Target target{.name = "archive", .seeds = {}, .words = {}, .run = run_archive};
  for (size_t count = 0; count <= std::size(kKeys); ++count)
    for (const char first : {'0', '1'}) target.seeds.push_back(first + archive_of(count));
  return target;
}

}  // namespace ejk::fuzz
