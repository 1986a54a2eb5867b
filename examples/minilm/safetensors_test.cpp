// What the reader hands out, and every way in which a file can lie.
#include "examples/minilm/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include <ejkernel/core/error.h>
#include "examples/minilm/mutants.h"

namespace minilm {
namespace {

using ejk::DType;
using testing::ElementsAre;
using testing::HasSubstr;

/// A file's bytes: the header's length, the header, `data`.
std::string file_of(const std::string& header, const std::string& data) {
  std::string file;
  for (int i = 0; i < 8; ++i) file += static_cast<char>(static_cast<uint64_t>(header.size()) >> (8 * i));
  return file + header + data;
}

SafeTensors open(const std::string& bytes) {
  const ExactCopy copy(bytes);
  return SafeTensors("test", copy.bytes(), copy.block);
}

std::string error_of(const std::string& bytes) {
  try {
    open(bytes);
  } catch (const ejk::InvalidArgument& error) {
    return error.what();
  }
  return "no InvalidArgument";
}
std::string error_of(const std::string& header, const std::string& data) { return error_of(file_of(header, data)); }

const std::string kPair = R"({"b": {"dtype": "F32", "shape": [2, 2], "data_offsets": [4, 20]},
  "__metadata__": {"format": "pt", "by": "hand"}, "a": {"dtype": "BF16", "shape": [2], "data_offsets": [0, 4]}})";

std::string pair_data() {
  const uint16_t a[] = {0x3F80, 0xC000};  // 1, -2 in bf16
  const float b[] = {1.5f, 2.5f, 3.5f, 4.5f};
  std::string data(sizeof(a) + sizeof(b), '\0');
  std::memcpy(data.data(), a, sizeof(a));
  std::memcpy(data.data() + sizeof(a), b, sizeof(b));
  return data;
}

std::vector<double> values(const ejk::Tensor& t) {
  std::vector<double> all;
  for (int64_t n = 0; n < t.num_elements(); ++n) all.push_back(ejk::get(t, n));
  return all;
}

class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& content)
      : path_(testing::TempDir() + "/safetensors_test_" + std::to_string(::getpid())) {
    std::ofstream(path_, std::ios::binary) << content;
  }
  ~TemporaryFile() { ::unlink(path_.c_str()); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

TEST(SafeTensors, hands_out_tensors_by_name) {
  const SafeTensors file = open(file_of(kPair, pair_data()));
  EXPECT_EQ(file.entries().size(), 2u);
  const ejk::Array a = file.tensor("a"), b = file.tensor("b");
  EXPECT_EQ(to_string(a.view()), "bf16[2]");
  EXPECT_THAT(values(a), ElementsAre(1, -2));
  EXPECT_EQ(to_string(b.view()), "f32[2, 2]");
  EXPECT_THAT(values(b), ElementsAre(1.5, 2.5, 3.5, 4.5));
}

TEST(SafeTensors, tensors_outlive_the_reader_of_a_mapped_file) {
  const TemporaryFile file(file_of(kPair, pair_data()));
  const ejk::Array a = SafeTensors(file.path()).tensor("a");
  EXPECT_THAT(values(a), ElementsAre(1, -2));
}

TEST(SafeTensors, misaligned_tensors_are_copied) {
  const std::string header = R"({"x": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]},
    "y": {"dtype": "F64", "shape": [1], "data_offsets": [1, 9]}})";
  const double y = 2.25;
  const SafeTensors file = open(file_of(header, "\7" + std::string(reinterpret_cast<const char*>(&y), sizeof(y))));
  const ejk::Array array = file.tensor("y");
  EXPECT_EQ(reinterpret_cast<uintptr_t>(array.data()) % sizeof(double), 0u);
  EXPECT_THAT(values(array), ElementsAre(2.25));
}

TEST(SafeTensors, scalars_empty_tensors_and_empty_files_are_fine) {
  EXPECT_TRUE(open(file_of("{}", "")).entries().empty());
  const std::string header = R"({"none": {"dtype": "I64", "shape": [0, 3], "data_offsets": [4, 4]},
    "one": {"dtype": "I32", "shape": [], "data_offsets": [0, 4]}}   )";
  const SafeTensors file = open(file_of(header, std::string("\5\0\0\0", 4)));
  EXPECT_EQ(file.tensor("none").num_elements(), 0);
  EXPECT_THAT(values(file.tensor("one")), ElementsAre(5));
}

TEST(SafeTensors, what_is_not_there_and_what_the_library_lacks) {
  const SafeTensors file =
      open(file_of(R"({"x": {"dtype": "U64", "shape": [1], "data_offsets": [0, 8]}})", std::string(8, 'x')));
  try {
    file.tensor("y");
    FAIL();
  } catch (const ejk::InvalidArgument& error) {
    EXPECT_THAT(error.what(), HasSubstr("'y' must be in test, got no such tensor among its 1"));
  }
  try {
    file.tensor("x");
    FAIL();
  } catch (const ejk::InvalidArgument& error) {
    EXPECT_THAT(error.what(), HasSubstr("dtype of 'x' must be one that the library has, got U64"));
  }
}

TEST(SafeTensors, files_that_cannot_be_read) {
  auto error_of_path = [](const std::string& path) -> std::string {
    try {
      SafeTensors file(path);
    } catch (const ejk::InvalidArgument& error) {
      return error.what();
    }
    return "no InvalidArgument";
  };
  EXPECT_THAT(error_of_path("/nowhere/model.safetensors"),
              HasSubstr("file '/nowhere/model.safetensors' must be a file that can be read, got No such file"));
  EXPECT_THAT(error_of_path(testing::TempDir()), HasSubstr("got something that is no regular file"));
  const std::string pipe = testing::TempDir() + "/safetensors_pipe_" + std::to_string(::getpid());
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_THAT(error_of_path(pipe), HasSubstr("got something that is no regular file"));
  ::unlink(pipe.c_str());
  const TemporaryFile empty("");
  EXPECT_THAT(error_of_path(empty.path()), HasSubstr("must begin with 8 bytes of header length, got 0 bytes"));
}

TEST(SafeTensors, header_lengths_that_lie) {
  EXPECT_THAT(error_of(std::string(7, '\0')), HasSubstr("must begin with 8 bytes of header length, got 7 bytes"));
  EXPECT_THAT(error_of(std::string(8, '\0')), HasSubstr("header of test must begin with '{'"));
  EXPECT_THAT(error_of(std::string(12, '\xff')),
              HasSubstr("header length of test must be at most 4, got 18446744073709551615"));
  EXPECT_THAT(error_of(std::string("\3\0\0\0\0\0\0\0{}", 10)), HasSubstr("must be at most 2, got 3"));
  const std::string whole = file_of(kPair, pair_data());
  for (size_t size = 0; size < whole.size(); ++size) EXPECT_THAT(error_of(whole.substr(0, size)), HasSubstr(" must "));
}

/// A header with one tensor "x", for data of 8 bytes, and the text that its error has.
struct Lie {
  const char* fields;
  const char* error;
};
constexpr Lie kLies[] = {
    {R"("dtype": "F32", "shape": [2])", "'x' in test must have the fields dtype, shape and data_offsets, got fewer"},
    {R"("dtype": "F31", "shape": [2], "data_offsets": [0, 8])", "dtype of 'x' in test must be one of the format's"},
    {R"("dtype": 32, "shape": [2], "data_offsets": [0, 8])", "dtype of 'x' in test must be text, got a number"},
    {R"("dtype": ["F32"], "shape": [2], "data_offsets": [0, 8])", "dtype of 'x' in test must be text, got a list"},
    {R"("dtype": "F32", "shape": 2, "data_offsets": [0, 8])", "shape of 'x' in test must be a list of whole numbers"},
    {R"("dtype": "F32", "shape": "[2]", "data_offsets": [0, 8])", "must be a list of whole numbers, got text"},
    {R"("dtype": "F32", "shape": {"n": 2}, "data_offsets": [0, 8])", "must be a list of whole numbers, got an object"},
    {R"("dtype": "F32", "shape": [[2]], "data_offsets": [0, 8])",
     "must hold whole numbers from 0 to 2^64 - 1, got a l"},
    {R"("dtype": "F32", "shape": [-2], "data_offsets": [0, 8])", "got the negative number -2"},
    {R"("dtype": "F32", "shape": [2.0], "data_offsets": [0, 8])", "got the number '2.0'"},
    {R"("dtype": "F32", "shape": [true], "data_offsets": [0, 8])", "got a boolean"},
    {R"("dtype": "F32", "shape": null, "data_offsets": [0, 8])", "got null"},
    {R"("dtype": "F32", "shape": [1e999], "data_offsets": [0, 8])", "be JSON, got a mistake at its byte"},
    {R"("dtype": "F32", "shape": [18446744073709551616], "data_offsets": [0, 8])",
     "got the number '184467440737095516"},
    {R"("dtype": "F32", "shape": [9223372036854775808], "data_offsets": [0, 8])", "have extents below 2^63"},
    {R"("dtype": "F32", "shape": [4294967296, 4294967296], "data_offsets": [0, 8])", "span the more than 2^64 bytes"},
    {R"("dtype": "F32", "shape": [1,1,1,1,1,1,2], "data_offsets": [0, 8])", "have at most 6 numbers"},
    {R"("dtype": "F32", "shape": [3], "data_offsets": [0, 8])", "span the 12 bytes of F32[3], got 8 bytes, [0, 8]"},
    {R"("dtype": "F32", "shape": [2], "data_offsets": [0, 8, 8])", "be two numbers, got 3"},
    {R"("dtype": "F32", "shape": [2], "data_offsets": [8, 0])", "lie in order within the 8 bytes of data, got [8, 0]"},
    {R"("dtype": "F32", "shape": [2], "data_offsets": [4, 12])",
     "lie in order within the 8 bytes of data, got [4, 12]"},
    {R"("dtype": "F32", "shape": [1], "data_offsets": [4, 8])", "begin where the tensor before ends, at 0, got 4"},
    {R"("dtype": "F32", "shape": [1], "data_offsets": [0, 4])", "end with the last tensor, at 4, got 8 bytes"},
    {R"("dtype": "F32", "dtype": "F32", "shape": [2], "data_offsets": [0, 8])",
     "dtype of 'x' in test must be there on"},
    {R"("dtype": "F32", "shape": [2], "data_offsets": [0, 8], "strides": [1])",
     "have the fields dtype, shape and data"},
};

TEST(SafeTensors, tensors_that_lie) {
  for (const Lie& lie : kLies)
    EXPECT_THAT(error_of("{\"x\": {" + std::string(lie.fields) + "}}", std::string(8, 'x')), HasSubstr(lie.error));
}

TEST(SafeTensors, headers_that_lie) {
  const std::string x = R"("x": {"dtype": "U8", "shape": [2], "data_offsets": [0, 2]})";
  EXPECT_THAT(error_of("{" + x + ", " + x + "}", "ab"), HasSubstr("'x' in test must be there once, got it twice"));
  EXPECT_THAT(error_of("{" + x + R"(, "y": {"dtype": "U8", "shape": [2], "data_offsets": [1, 3]}})", "abc"),
              HasSubstr("data_offsets of 'y' in test must begin where the tensor before ends, at 2, got 1"));
  EXPECT_THAT(error_of(R"({"x": 3})", ""), HasSubstr("'x' in test must be an object, got a number"));
  EXPECT_THAT(error_of(R"({"__metadata__": {"a": 3}})", ""), HasSubstr("'__metadata__' in test must hold text only"));
  EXPECT_THAT(error_of(R"({"__metadata__": {}, "__metadata__": {}})", ""), HasSubstr("be there once, got it twice"));
  EXPECT_THAT(error_of("{} {}", ""), HasSubstr("be JSON, got a mistake at its byte"));
  EXPECT_THAT(error_of("{\"\xff\": 1}", ""), HasSubstr("be JSON, got a mistake at its byte"));
  EXPECT_THAT(error_of("[1]", ""), HasSubstr("must begin with '{'"));
}

TEST(SafeTensors, nesting_is_refused_where_it_begins) {
  std::string header = "{\"x\": ";
  for (int i = 0; i < 1'000'000; ++i) header += i % 2 == 0 ? "[" : "{\"x\":";
  EXPECT_THAT(error_of(header, ""), HasSubstr("'x' in test must be an object, got a list"));
}

TEST(SafeTensors, names_in_messages_are_short_and_printable) {
  const std::string error = error_of("{\"" + std::string(5000, 'n') + "\\u001b[2J\": 1}", "");
  EXPECT_LT(error.size(), 300u);
  EXPECT_THAT(error_of(R"({"\u001b[2J": 1})", ""), HasSubstr("'?[2J' in test"));
}

// clang-format off
constexpr std::string_view kWords[] = {
    "{", "}", "[", "]", "\"", ",", ":", "-1", "1e9", "18446744073709551615", "9223372036854775807", "0,", "null", "\"x\":",
    "F64", "data_offsets", "\\u0000"};
// clang-format on

/// As `mutate`, and the two that only this format has: a header length that lies, a number that does.
void mutate_file(std::string& file, std::mt19937_64& random) {
  const size_t kind = random() % 8;
  const size_t digit = file.find_first_of("0123456789", 8 + random() % (file.size() + 1));
  if (kind == 0 && file.size() >= 8)
    file[random() % 2 == 0 ? 0 : random() % 8] = static_cast<char>(random());
  else if (kind == 1 && digit != std::string::npos)
    file[digit] = static_cast<char>('0' + random() % 10);
  else
    mutate(file, kWords, random);
}

/// Reads everything that an accepted file hands out.
void read(const SafeTensors& file) {
  for (const auto& [name, entry] : file.entries()) {
    if (entry.dtype == "U64" || entry.dtype == "I16" || entry.dtype == "U16") continue;  // not the library's
    const ejk::Array tensor = file.tensor(name);
    for (int64_t i = 0; i < tensor.num_elements(); ++i) ejk::get(tensor, i);
    EXPECT_EQ(static_cast<size_t>(ejk::num_bytes(tensor.dtype(), tensor.shape())), entry.bytes.size());
  }
}

/// Opens mutants of a good file. Returns how many were accepted.
int64_t open_mutants(int64_t count, uint64_t seed) {
  const std::string whole = file_of(kPair, pair_data());
  std::mt19937_64 random(seed);
  int64_t accepted = 0;
  for (int64_t n = 0; n < count; ++n) {
    std::string mutant = whole;
    for (uint64_t changes = 1 + random() % 4; changes > 0; --changes) mutate_file(mutant, random);
    try {
      read(open(mutant));
      ++accepted;
    } catch (const ejk::InvalidArgument& error) {
      EXPECT_THAT(error.what(), HasSubstr(" must ")) << n;
    }
  }
  return accepted;
}

TEST(SafeTensors, mutants_are_read_or_refused) {
  const int64_t accepted = open_mutants(20'000, 1);
  EXPECT_GT(accepted, 100);
  EXPECT_LT(accepted, 19'000);
}

TEST(SafeTensorsLong, a_million_mutants_are_read_or_refused) { EXPECT_GT(open_mutants(1'000'000, 2), 5000); }

}  // namespace
}  // namespace minilm
