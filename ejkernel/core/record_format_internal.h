// The bytes of a record: a header with sizes and digest, the whole key, the value, the provenance. Whatever the bytes
// are, reading them ends in a record or in a reason. The header and what the digest covers are the same in every
// schema, so that a newer version's record can be told from a damaged one.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "ejkernel/core/store.h"

namespace ejk::record_format {

inline constexpr uint32_t kSchema = 1;
inline constexpr size_t kLargestRecord = size_t{64} << 20;

std::string encode(const RecordKey& key, const Record& record);

struct Decoded {
  RecordState state = RecordState::damaged;
  std::string_view reason = {};  ///< when it is not good
  RecordKey key = {};            ///< when it is good, and what follows
  Record record = {};
};
Decoded decode(std::string bytes);

/// Puts the digest of all the rest into a record's header.
void sign(std::string& bytes);

/// The key in one line, so that no two keys are alike: "<size>:<part>" three times.
std::string whole(const RecordKey& key);

/// A part of a key as the name of a folder: no part can leave the store, name a hidden file or be too long.
std::string folder_name(std::string_view text);
/// Where a key's record stands below a root.
std::string relative_path(const RecordKey& key);
/// The folder below a root that holds this schema's records.
inline constexpr std::string_view kSchemaFolder = "v1";
/// Whether a file's name is one that records have.
bool is_record_name(std::string_view name);

}  // namespace ejk::record_format
