#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cstddef>
#include <cstring>
#include <optional>

#include "ejkernel/core/digest.h"
#include "ejkernel/core/record_format_internal.h"

namespace ejk {

std::string_view name(RecordState state) {
  switch (state) {
    case RecordState::good:
      return "good";
    case RecordState::damaged:
      return "damaged";
    case RecordState::newer:
      return "newer";
  }
  return "";
}

namespace record_format {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers in records are little-endian");

constexpr std::array<char, 8> kMagic = {'e', 'j', 'k', 's', 't', 'o', 'r', 'e'};

struct Header {
  std::array<char, 8> magic = kMagic;
  uint32_t schema = kSchema;
  uint32_t reserved = 0;
  uint64_t key_bytes = 0, value_bytes = 0, provenance_bytes = 0;
  Digest digest = {};  ///< of this header with a digest of zeros, and of all that follows
};
static_assert(sizeof(Header) == 56);

constexpr size_t kDigestAt = offsetof(Header, digest);

/// Makes the digest in the header zeros, and returns what it should be.
Digest clear_digest(std::string& bytes) {
  std::memset(bytes.data() + kDigestAt, 0, sizeof(Digest));
  return digest_of(bytes);
}

/// Takes "<size>:<part>" off the front of `text`.
std::optional<std::string> take_part(std::string_view& text) {
  size_t size = 0;
  const auto [colon, error] = std::from_chars(text.data(), text.data() + text.size(), size);
  if (error != std::errc() || colon == text.data() + text.size() || *colon != ':') return std::nullopt;
  text.remove_prefix(static_cast<size_t>(colon - text.data()) + 1);
  if (size > text.size()) return std::nullopt;
  std::string part(text.substr(0, size));
  text.remove_prefix(size);
  return part;
}

std::optional<RecordKey> parse_key(std::string_view text) {
  std::string_view rest = text;
  RecordKey key;
  for (std::string* part : {&key.environment, &key.group, &key.text}) {
    const auto taken = take_part(rest);
    if (!taken) return std::nullopt;
    *part = *taken;
  }
  if (whole(key) != text) return std::nullopt;
  return key;
}

Decoded damaged(std::string_view reason) { return {.state = RecordState::damaged, .reason = reason}; }

}  // namespace

std::string encode(const RecordKey& key, const Record& record) {
  const std::string key_text = whole(key);
  Header header;
  header.key_bytes = key_text.size();
  header.value_bytes = record.value.size();
  header.provenance_bytes = record.provenance.size();
  std::string bytes(sizeof(Header), '\0');
  bytes.reserve(sizeof(Header) + key_text.size() + record.value.size() + record.provenance.size());
  bytes.append(key_text).append(record.value).append(record.provenance);
  std::memcpy(bytes.data(), &header, sizeof(Header));
  sign(bytes);
  return bytes;
}

void sign(std::string& bytes) {
  const Digest digest = clear_digest(bytes);
  std::memcpy(bytes.data() + kDigestAt, &digest, sizeof digest);
}

Decoded decode(std::string bytes) {
  Header header;
  if (bytes.size() < sizeof(Header)) return damaged("it is shorter than a record's header");
  std::memcpy(&header, bytes.data(), sizeof(Header));
  if (header.magic != kMagic) return damaged("it does not begin as a record does");
  const size_t content = bytes.size() - sizeof(Header);
  // One by one, so that no sum of hostile sizes wraps around.
  if (header.key_bytes > content || header.value_bytes > content - header.key_bytes ||
      header.provenance_bytes != content - header.key_bytes - header.value_bytes)
    return damaged("its length is not what its header says");
  if (!(clear_digest(bytes) == header.digest)) return damaged("its content is not what its digest says");
  if (header.schema > kSchema) return {.state = RecordState::newer, .reason = "a newer version wrote it"};
  if (header.schema != kSchema) return damaged("it is of a schema that never was");
  const std::string_view view = std::string_view(bytes).substr(sizeof(Header));
  const auto key = parse_key(view.substr(0, header.key_bytes));
  if (!key) return damaged("its key does not read as one");
  return {.state = RecordState::good,
          .key = *key,
          .record = {.value = std::string(view.substr(header.key_bytes, header.value_bytes)),
                     .provenance = std::string(view.substr(header.key_bytes + header.value_bytes))}};
}

std::string whole(const RecordKey& key) {
  std::string text;
  for (const std::string* part : {&key.environment, &key.group, &key.text})
    text += std::to_string(part->size()) + ":" + *part;
  return text;
}

std::string folder_name(std::string_view text) {
  std::string name;
  for (const char c : text.substr(0, 100)) {
    const bool is_plain =
        (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
    name += is_plain ? c : '_';
  }
  return name.empty() ? "_" : name;
}

std::string relative_path(const RecordKey& key) {
  return std::string(kSchemaFolder) + "/" + folder_name(key.environment) + "/" + folder_name(key.group) + "/" +
         to_string(digest_of(whole(key)));
}

bool is_record_name(std::string_view name) {
  return name.size() == 32 && name.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

}  // namespace record_format
}  // namespace ejk
