#include "examples/minilm/safetensors.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include <ejkernel/core/validate.h>
#include "examples/minilm/mapped_file.h"

namespace minilm {
namespace {

using ejk::DType;

constexpr size_t kLengthBytes = 8;
constexpr uint64_t kMaxHeader = 100'000'000;  // the format's own limit
constexpr std::string_view kFix = "the file is damaged or no safetensors file: fetch it again";

struct FileDType {
  std::string_view name;
  uint64_t bytes;
  std::optional<DType> dtype;  // none: the library has no such elements, but the file may hold them
};
constexpr std::array kFileDTypes = {
    FileDType{"BOOL", 1, DType::boolean}, FileDType{"U8", 1, DType::u8},        FileDType{"I8", 1, DType::i8},
    FileDType{"F8_E5M2", 1, DType::e5m2}, FileDType{"F8_E4M3", 1, DType::e4m3}, FileDType{"I16", 2, std::nullopt},
    FileDType{"U16", 2, std::nullopt},    FileDType{"F16", 2, DType::f16},      FileDType{"BF16", 2, DType::bf16},
    FileDType{"I32", 4, DType::i32},      FileDType{"U32", 4, DType::u32},      FileDType{"F32", 4, DType::f32},
    FileDType{"F64", 8, DType::f64},      FileDType{"I64", 8, DType::i64},      FileDType{"U64", 8, std::nullopt},
};

const FileDType* find_dtype(std::string_view name) {
  const auto at = std::find_if(kFileDTypes.begin(), kFileDTypes.end(), [&](const auto& d) { return d.name == name; });
  return at == kFileDTypes.end() ? nullptr : &*at;
}

[[noreturn]] void refuse(const std::string& argument, const std::string& expected, const std::string& got) {
  ejk::throw_invalid("safetensors", argument, expected, got, kFix);
}

/// What the header says about one tensor, before anything is believed.
struct Claim {
  std::optional<std::string> dtype;
  std::optional<std::vector<uint64_t>> shape;
  std::optional<std::vector<uint64_t>> data_offsets;
};

/// Takes the events of the JSON parser for exactly the structure that the format has, so that nesting is refused at the
/// level where it is wrong and nothing grows but the list of tensors:
///
///   { "__metadata__": {"key": "text", …}, "name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, … }
class HeaderHandler {
 public:
  explicit HeaderHandler(const std::string& file) : file_(file) {}

  std::map<std::string, Claim> take() { return std::move(claims_); }

  bool null() { return unexpected("null"); }
  bool boolean(bool) { return unexpected("a boolean"); }
  bool number_integer(int64_t value) { return unexpected("the negative number " + std::to_string(value)); }
  bool number_float(double, const std::string& text) { return unexpected("the number " + printable(text)); }
  bool binary(std::vector<uint8_t>&) { return unexpected("binary data"); }

  bool number_unsigned(uint64_t value) {
    if (level_ != Level::list) return unexpected("a number");
    if (list_->size() == ejk::kMaxRank)
      refuse(where(), "have at most " + std::to_string(ejk::kMaxRank) + " numbers", "more");
    list_->push_back(value);
    return true;
  }

  bool string(const std::string& text) {
    if (level_ == Level::metadata) return true;
    if (level_ != Level::tensor || field_ != "dtype") return unexpected("text");
    claim_->dtype = text;
    field_.clear();
    return true;
  }

  bool start_object(size_t) {
    if (level_ == Level::none) {
      level_ = Level::header;
    } else if (level_ == Level::header) {
      level_ = claim_ != nullptr ? Level::tensor : Level::metadata;
    } else {
      return unexpected("an object");
    }
    return true;
  }

  bool key(const std::string& text) {
    if (level_ == Level::header) {
      start_tensor(text);
    } else if (level_ == Level::tensor) {
      const bool is_known = text == "dtype" || text == "shape" || text == "data_offsets";
      if (!is_known) refuse(where(), "have the fields dtype, shape and data_offsets only", printable(text));
      field_ = text;
      if ((text == "dtype" && claim_->dtype) || (text == "shape" && claim_->shape) ||
          (text == "data_offsets" && claim_->data_offsets))
        refuse(where(), "be there once", "it twice");
    }
    return true;
  }

  bool end_object() {
    level_ = level_ == Level::header ? Level::none : Level::header;
    claim_ = nullptr;
    field_.clear();
    return true;
  }

  bool start_array(size_t) {
    if (level_ != Level::tensor || field_ == "dtype") return unexpected("a list");
    auto& list = field_ == "shape" ? claim_->shape : claim_->data_offsets;
    list_ = &list.emplace();
    level_ = Level::list;
    return true;
  }

  bool end_array() {
    level_ = Level::tensor;
    field_.clear();
    return true;
  }

  bool parse_error(size_t position, const std::string&, const nlohmann::json::exception&) {
    refuse("header of " + file_, "be JSON", "a mistake at its byte " + std::to_string(position));
  }

 private:
  enum class Level { none, header, metadata, tensor, list };

  void start_tensor(const std::string& name) {
    tensor_ = name;
    if (name == "__metadata__") {
      if (std::exchange(has_metadata_, true)) refuse(where(), "be there once", "it twice");
      return;
    }
    const auto [at, is_new] = claims_.try_emplace(name);
    if (!is_new) refuse(where(), "be there once", "it twice");
    claim_ = &at->second;
  }

  bool unexpected(const std::string& got) const {
    switch (level_) {
      case Level::none:
        refuse(where(), "be one object", got);
      case Level::header:
        refuse(where(), "be an object", got);
      case Level::metadata:
        refuse(where(), "hold text only", got);
      case Level::tensor:
        refuse(where(), field_ == "dtype" ? "be text" : "be a list of whole numbers", got);
      case Level::list:
        refuse(where(), "hold whole numbers from 0 to 2^64 - 1", got);
    }
    return false;
  }

  std::string where() const {
    if (level_ == Level::none) return "header of " + file_;
    return (field_.empty() ? "" : field_ + " of ") + printable(tensor_) + " in " + file_;
  }

  const std::string& file_;
  std::map<std::string, Claim> claims_;
  Level level_ = Level::none;
  std::string tensor_, field_;
  Claim* claim_ = nullptr;  // null inside the metadata
  std::vector<uint64_t>* list_ = nullptr;
  bool has_metadata_ = false;
};

/// Bytes of a tensor, or none when that does not fit 64 bits.
std::optional<uint64_t> size_of(const std::vector<uint64_t>& shape, uint64_t element) {
  if (std::find(shape.begin(), shape.end(), 0u) != shape.end()) return 0;
  uint64_t size = element;
  for (uint64_t extent : shape)
    if (__builtin_mul_overflow(size, extent, &size)) return std::nullopt;
  return size;
}

/// A claim that was found to be true of `data`, the bytes after the header.
SafeTensors::Entry check(const std::string& where, const Claim& claim, std::span<const std::byte> data) {
  if (!claim.dtype || !claim.shape || !claim.data_offsets)
    refuse(where, "have the fields dtype, shape and data_offsets", "fewer");
  const FileDType* dtype = find_dtype(*claim.dtype);
  if (dtype == nullptr) refuse("dtype of " + where, "be one of the format's (F32, BF16, …)", printable(*claim.dtype));

  if (claim.data_offsets->size() != 2)
    refuse("data_offsets of " + where, "be two numbers", std::to_string(claim.data_offsets->size()));
  const uint64_t begin = claim.data_offsets->at(0), end = claim.data_offsets->at(1);
  const std::string range = "[" + std::to_string(begin) + ", " + std::to_string(end) + "]";
  if (begin > end || end > data.size())
    refuse("data_offsets of " + where, "lie in order within the " + std::to_string(data.size()) + " bytes of data",
           range);

  SafeTensors::Entry entry = {.dtype = dtype->name, .shape = {}, .bytes = data.subspan(begin, end - begin)};
  for (uint64_t extent : *claim.shape) {
    if (extent > static_cast<uint64_t>(INT64_MAX))
      refuse("shape of " + where, "have extents below 2^63", std::to_string(extent));
    entry.shape.push_back(static_cast<int64_t>(extent));
  }
  const auto size = size_of(*claim.shape, dtype->bytes);
  if (size != end - begin)
    refuse("data_offsets of " + where,
           "span the " + (size ? std::to_string(*size) : "more than 2^64") + " bytes of " + *claim.dtype +
               to_string(entry.shape),
           std::to_string(end - begin) + " bytes, " + range);
  return entry;
}

/// Tensors follow one another: a byte that two share, or that none has, means that the file was tampered with.
void check_layout(const std::string& file, const SafeTensors::Entries& entries, std::span<const std::byte> data) {
  std::vector<const SafeTensors::Entries::value_type*> order;
  for (const auto& entry : entries) order.push_back(&entry);
  std::sort(order.begin(), order.end(), [](const auto* a, const auto* b) {
    return std::pair(a->second.bytes.data(), a->second.bytes.size()) <
           std::pair(b->second.bytes.data(), b->second.bytes.size());
  });
  const std::byte* next = data.data();
  for (const auto* entry : order) {
    const std::span<const std::byte> bytes = entry->second.bytes;
    if (bytes.data() != next)
      refuse("data_offsets of " + printable(entry->first) + " in " + file,
             "begin where the tensor before ends, at " + std::to_string(next - data.data()),
             std::to_string(bytes.data() - data.data()));
    next = bytes.data() + bytes.size();
  }
  if (next != data.data() + data.size())
    refuse("data of " + file, "end with the last tensor, at " + std::to_string(next - data.data()),
           std::to_string(data.size()) + " bytes");
}

std::string base_name(const std::string& path) { return path.substr(path.find_last_of('/') + 1); }

}  // namespace

SafeTensors::SafeTensors(const std::string& path) : name_(base_name(path)) {
  MappedFile file = map_file(path);
  owner_ = std::move(file.owner);
  read_header(file.bytes);
}

SafeTensors::SafeTensors(std::string name, std::span<const std::byte> bytes, std::shared_ptr<const void> owner)
    : name_(std::move(name)), owner_(std::move(owner)) {
  read_header(bytes);
}

void SafeTensors::read_header(std::span<const std::byte> file) {
  if (file.size() < kLengthBytes)
    refuse(name_, "begin with 8 bytes of header length", std::to_string(file.size()) + " bytes");
  uint64_t length = 0;
  for (size_t i = 0; i < kLengthBytes; ++i) length |= std::to_integer<uint64_t>(file[i]) << (8 * i);
  const uint64_t limit = std::min<uint64_t>(file.size() - kLengthBytes, kMaxHeader);
  if (length > limit)
    refuse("header length of " + name_, "be at most " + std::to_string(limit), std::to_string(length));

  const auto* header = reinterpret_cast<const char*>(file.data() + kLengthBytes);
  if (length == 0 || *header != '{') refuse("header of " + name_, "begin with '{'", "something else");
  HeaderHandler handler(name_);
  nlohmann::json::sax_parse(header, header + length, &handler);

  const std::span<const std::byte> data = file.subspan(kLengthBytes + length);
  for (const auto& [name, claim] : handler.take())
    entries_.emplace(name, check(printable(name) + " in " + name_, claim, data));
  check_layout(name_, entries_, data);
}

ejk::Array SafeTensors::tensor(std::string_view name) const {
  const auto at = entries_.find(name);
  if (at == entries_.end())
    ejk::throw_invalid("safetensors", printable(name), "be in " + name_,
                       "no such tensor among its " + std::to_string(entries_.size()), "is it the right model?");
  const Entry& entry = at->second;
  const FileDType* dtype = find_dtype(entry.dtype);
  if (!dtype->dtype)
    ejk::throw_invalid("safetensors", "dtype of " + printable(name), "be one that the library has",
                       std::string(entry.dtype), "convert the file");
  // A Tensor's data is not const, whatever its role; the mapping is read-only and nothing here writes to it.
  void* data = const_cast<std::byte*>(entry.bytes.data());
  if (reinterpret_cast<uintptr_t>(data) % dtype->bytes == 0)
    return ejk::Array(ejk::Tensor(data, *dtype->dtype, entry.shape), std::const_pointer_cast<void>(owner_));
  ejk::Array copy(*dtype->dtype, entry.shape);
  if (!entry.bytes.empty()) std::memcpy(copy.data(), data, entry.bytes.size());
  return copy;
}

}  // namespace minilm
