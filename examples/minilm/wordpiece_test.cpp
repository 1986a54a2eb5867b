// The tokeniser against ids of the original one (tokens.json, written by goldens.py), and against hostile input.
#include "examples/minilm/wordpiece.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include <ejkernel/core/error.h>
#include "examples/minilm/mapped_file.h"
#include "examples/minilm/mutants.h"
#include "examples/minilm/unicode.h"

namespace minilm {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

struct Golden {
  std::string text;
  std::vector<int32_t> ids;
  std::vector<std::string> pieces;
};

std::vector<Golden> goldens() {
  std::vector<Golden> all;
  for (const auto& item : nlohmann::json::parse(map_file(EJK_MINILM_FOLDER "/tokens.json").text()))
    all.push_back({item.at("text"), item.at("ids"), item.at("pieces")});
  return all;
}

/// The part of the real vocabulary that the goldens name, each piece on its own line. A piece that is missing could
/// only make a word unknown, never split it otherwise: where the whole vocabulary has a longest piece, this one has it
/// too.
std::string vocabulary_of(const std::vector<Golden>& all) {
  std::map<int32_t, std::string> pieces;
  for (const Golden& golden : all)
    for (size_t i = 0; i < golden.ids.size(); ++i) pieces[golden.ids[i]] = golden.pieces[i];
  std::string text;
  for (int32_t id = 0; id <= pieces.rbegin()->first; ++id)
    text += (pieces.contains(id) ? pieces[id] : "[line " + std::to_string(id) + "]") + "\n";
  return text;
}

std::string error_of(const std::string& vocabulary) {
  try {
    const WordPiece tokeniser(vocabulary);
  } catch (const ejk::InvalidArgument& error) {
    return error.what();
  }
  return "no InvalidArgument";
}

const char kSmall[] = "[UNK]\n[CLS]\n[SEP]\nab\n##c\nabc\n##cd\n.\n##d\n";

TEST(WordPiece, agrees_with_the_original) {
  const std::vector<Golden> all = goldens();
  ASSERT_GT(all.size(), 50u);
  const WordPiece tokeniser(vocabulary_of(all));
  for (const Golden& golden : all) EXPECT_EQ(tokeniser.encode(golden.text), golden.ids) << golden.text;
}

TEST(WordPiece, takes_the_longest_piece_and_never_goes_back) {
  const WordPiece tokeniser(kSmall);
  EXPECT_EQ(tokeniser.size(), 9u);
  EXPECT_THAT(tokeniser.encode("abc AB abd abcc"), ElementsAre(1, 5, 3, 3, 8, 5, 4, 2));
  // "ab" + "##cd" would do, but "abc" is longer, and "##d" follows it.
  EXPECT_THAT(tokeniser.encode("abcd"), ElementsAre(1, 5, 8, 2));
  // What has no piece makes the whole word unknown, not its rest.
  EXPECT_THAT(tokeniser.encode("abx. x"), ElementsAre(1, 0, 7, 0, 2));
}

TEST(WordPiece, cuts_at_max_tokens) {
  const WordPiece tokeniser(kSmall);
  EXPECT_THAT(tokeniser.encode("ab ab ab ab", 5), ElementsAre(1, 3, 3, 3, 2));
  EXPECT_THAT(tokeniser.encode("ab abcd", 4), ElementsAre(1, 3, 5, 2));
  EXPECT_THAT(tokeniser.encode("ab ab", 2), ElementsAre(1, 2));
  EXPECT_THROW(tokeniser.encode("ab", 1), ejk::InvalidArgument);
  std::string huge;
  for (int i = 0; i < 1'000'000; ++i) huge += "ab ";
  EXPECT_EQ(tokeniser.encode(huge).size(), WordPiece::kMaxTokens);
}

TEST(WordPiece, vocabularies_with_carriage_returns_and_without_a_last_line_feed) {
  EXPECT_THAT(WordPiece("[UNK]\r\n[CLS]\r\n[SEP]\r\nab").encode("ab"), ElementsAre(1, 3, 2));
}

TEST(WordPiece, vocabularies_that_lie) {
  EXPECT_THAT(error_of(""), HasSubstr("vocabulary must hold [UNK], got 0 other pieces"));
  EXPECT_THAT(error_of("[UNK]\n[SEP]\nab\n"), HasSubstr("vocabulary must hold [CLS], got 3 other pieces"));
  EXPECT_THAT(error_of("[UNK]\n\nab\n"), HasSubstr("line 2 of the vocabulary must hold a piece, got an empty line"));
  EXPECT_THAT(error_of("[UNK]\nab\nab\n"), HasSubstr("line 3 of the vocabulary must hold a piece that no line before"));
  EXPECT_THROW(WordPiece::from_file("/nowhere/vocab.txt"), ejk::InvalidArgument);
}

TEST(WordPiece, any_bytes_give_tokens) {
  const std::vector<Golden> all = goldens();
  const WordPiece tokeniser(vocabulary_of(all));
  std::mt19937_64 random(3);
  for (int n = 0; n < 20'000; ++n) {
    std::string text = all[random() % all.size()].text.substr(0, 300);
    for (uint64_t i = 0; i < 1 + random() % 8; ++i)
      text.insert(random() % (text.size() + 1), 1, static_cast<char>(random()));
    text.resize(random() % (text.size() + 1));
    const std::vector<int32_t> ids = tokeniser.encode(text);
    ASSERT_GE(ids.size(), 2u);
    ASSERT_LE(ids.size(), WordPiece::kMaxTokens);
    for (int32_t id : ids) ASSERT_TRUE(id >= 0 && id < static_cast<int32_t>(tokeniser.size()));
  }
}

/// Reads mutants of a small vocabulary and takes words apart with them. Returns how many were accepted.
int64_t read_mutants(int64_t count, uint64_t seed) {
  constexpr std::string_view kWords[] = {"\n", "\r\n", "##", "\n##\n", "[CLS]", "\n[UNK]\n", "ab", "\xC3", " "};
  std::mt19937_64 random(seed);
  int64_t accepted = 0;
  for (int64_t n = 0; n < count; ++n) {
    std::string mutant = kSmall;
    for (uint64_t changes = 1 + random() % 4; changes > 0; --changes) mutate(mutant, kWords, random);
    const ExactCopy vocabulary(mutant), text("abcd abc. \xff\xfe ab\xC3\xA9" + mutant);
    try {
      const WordPiece tokeniser(vocabulary.text());
      const std::vector<int32_t> ids = tokeniser.encode(text.text());
      EXPECT_TRUE(ids.size() >= 2 && ids.size() <= WordPiece::kMaxTokens) << n;
      for (int32_t id : ids) EXPECT_TRUE(id >= 0 && static_cast<size_t>(id) < tokeniser.size()) << n;
      ++accepted;
    } catch (const ejk::InvalidArgument& error) {
      EXPECT_THAT(error.what(), HasSubstr(" must ")) << n;
    }
  }
  return accepted;
}

TEST(WordPiece, any_bytes_are_a_vocabulary_or_are_refused) {
  const int64_t accepted = read_mutants(20'000, 4);
  EXPECT_GT(accepted, 2'000);
  EXPECT_LT(accepted, 19'000);
}

TEST(WordPieceLong, a_million_mutants_are_a_vocabulary_or_are_refused) { EXPECT_GT(read_mutants(1'000'000, 5), 5000); }

std::u32string decoded(std::string_view text) {
  std::u32string all;
  while (!text.empty()) all += unicode::take_character(text);
  return all;
}

TEST(Unicode, decodes_and_encodes_every_character) {
  for (char32_t c = 0; c <= 0x10FFFF; ++c) {
    std::string text;
    unicode::append_utf8(text, c);
    const bool is_surrogate = c >= 0xD800 && c <= 0xDFFF;
    ASSERT_EQ(decoded(text), is_surrogate ? std::u32string(3, 0xFFFD) : std::u32string(1, c))
        << static_cast<uint32_t>(c);
  }
}

TEST(Unicode, bytes_that_are_no_characters) {
  EXPECT_EQ(decoded("\x80z"), U"\xFFFDz");                              // continues nothing
  EXPECT_EQ(decoded("\xC3"), U"\xFFFD");                                // cut short
  EXPECT_EQ(decoded("\xE2\x82z"), U"\xFFFD\xFFFDz");                    // cut short by another character
  EXPECT_EQ(decoded("\xC0\xAF"), U"\xFFFD\xFFFD");                      // overlong
  EXPECT_EQ(decoded("\xE0\x80\xAF"), U"\xFFFD\xFFFD\xFFFD");            // overlong
  EXPECT_EQ(decoded("\xF4\x90\x80\x80"), U"\xFFFD\xFFFD\xFFFD\xFFFD");  // beyond the last
  EXPECT_EQ(decoded("\xFF\xFE"), U"\xFFFD\xFFFD");
}

std::u32string folded(std::u32string_view text) {
  std::u32string all;
  for (char32_t c : text) unicode::append_folded(all, c);
  return all;
}

TEST(Unicode, folds_case_and_accents) {
  EXPECT_EQ(folded(U"AZaz09 ÀÿŁŽ×"), U"azaz09 ayłz×");
  EXPECT_EQ(folded(U"Ệ ữ ẞ ǅ"), U"e u ß ǆ");
  EXPECT_EQ(folded(U"Ὀδυσσεύς ΆΪ"), U"οδυσσευς αι");
  EXPECT_EQ(folded(U"Ёлка Й"), U"елка и");
  EXPECT_EQ(folded(U"ガぱ"), U"カは");
  EXPECT_EQ(folded(U"한가"), U"\x1112\x1161\x11AB\x1100\x1161");
  EXPECT_EQ(folded(U"Ａ\x212A\x2260"), U"ａk=");
}

TEST(Unicode, classes) {
  EXPECT_TRUE(unicode::is_punctuation(U'$') && unicode::is_punctuation(U'—') && unicode::is_punctuation(U'。'));
  EXPECT_FALSE(unicode::is_punctuation(U'a') || unicode::is_punctuation(U'€') || unicode::is_punctuation(U'±'));
  EXPECT_TRUE(unicode::is_space(0x3000) && unicode::is_space(0xA0) && !unicode::is_space(0x200B));
  EXPECT_TRUE(unicode::is_removed(0) && unicode::is_removed(0xAD) && unicode::is_removed(unicode::kReplacement));
  EXPECT_TRUE(unicode::is_mark(0x301) && unicode::is_mark(0xFE0F) && !unicode::is_mark(U'a'));
  EXPECT_TRUE(unicode::is_ideograph(U'北') && !unicode::is_ideograph(U'が') && !unicode::is_ideograph(U'한'));
}

}  // namespace
}  // namespace minilm
