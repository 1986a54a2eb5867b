#include "examples/minilm/wordpiece.h"

#include <algorithm>
#include <utility>

#include <ejkernel/core/validate.h>
#include "examples/minilm/mapped_file.h"
#include "examples/minilm/unicode.h"

namespace minilm {
namespace {

constexpr size_t kMaxCharacters = 100;  // a longer word is [UNK]: what the model was trained with
constexpr std::string_view kContinued = "##";
constexpr std::string_view kFix = "it must be the model's own vocab.txt: fetch it again";

[[noreturn]] void refuse(const std::string& argument, const std::string& expected, const std::string& got) {
  ejk::throw_invalid("wordpiece", argument, expected, got, kFix);
}

/// Words of a text: what white space separates, with each punctuation mark and each ideograph a word of its own, in
/// lower case and without accents.
class Words {
 public:
  explicit Words(std::string_view text) : text_(text) {}

  /// False at the end of the text. A word of more than kMaxCharacters is cut there, which is enough to recognise it.
  bool next(std::u32string& word) {
    word.clear();
    while (fill()) {
      const char32_t c = folded_[at_];
      const bool is_alone = is_ideograph_ || unicode::is_punctuation(c);
      const bool ends_word = is_alone || unicode::is_space(c);
      if (ends_word && !word.empty()) return true;
      ++at_;
      if (!ends_word && word.size() <= kMaxCharacters) word.push_back(c);
      if (is_alone) {
        word.push_back(c);
        return true;
      }
    }
    return !word.empty();
  }

 private:
  /// Makes folded_[at_] the next character, of which one in the text may give several or none.
  bool fill() {
    while (at_ == folded_.size()) {
      if (text_.empty()) return false;
      folded_.clear();
      at_ = 0;
      const char32_t c = unicode::take_character(text_);
      if (unicode::is_removed(c) || unicode::is_mark(c)) continue;
      is_ideograph_ = unicode::is_ideograph(c);
      unicode::append_folded(folded_, c);
    }
    return true;
  }

  std::string_view text_;
  std::u32string folded_;
  size_t at_ = 0;
  bool is_ideograph_ = false;
};

}  // namespace

WordPiece::WordPiece(std::string_view vocabulary) {
  for (; !vocabulary.empty(); ++size_) {
    const size_t length = std::min(vocabulary.find('\n'), vocabulary.size());
    std::string_view piece = vocabulary.substr(0, length);
    vocabulary.remove_prefix(std::min(length + 1, vocabulary.size()));
    if (piece.ends_with('\r')) piece.remove_suffix(1);
    const std::string line = "line " + std::to_string(size_ + 1) + " of the vocabulary";
    if (piece.empty()) refuse(line, "hold a piece", "an empty line");
    if (size_ == static_cast<size_t>(INT32_MAX)) refuse(line, "have a number of 31 bits", "more");
    const bool is_continued = piece.size() > kContinued.size() && piece.starts_with(kContinued);
    if (is_continued) piece.remove_prefix(kContinued.size());
    longest_ = std::max(longest_, piece.size());
    Ids& ids = is_continued ? continued_ : starts_;
    const bool is_new = ids.emplace(piece, static_cast<int32_t>(size_)).second;
    if (!is_new) refuse(line, "hold a piece that no line before it has", "the same again");
  }
  unknown_ = special("[UNK]");
  begin_ = special("[CLS]");
  end_ = special("[SEP]");
}

WordPiece WordPiece::from_file(const std::string& path) { return WordPiece(map_file(path).text()); }

int32_t WordPiece::special(std::string_view token) const {
  const auto at = starts_.find(token);
  if (at == starts_.end()) refuse("vocabulary", "hold " + std::string(token), std::to_string(size_) + " other pieces");
  return at->second;
}

std::vector<int32_t> WordPiece::encode(std::string_view text, size_t max_tokens) const {
  if (max_tokens < 2)
    ejk::throw_invalid("wordpiece", "max_tokens", "be at least 2", std::to_string(max_tokens),
                       "[CLS] and [SEP] are always there");
  std::vector<int32_t> ids = {begin_};
  Words words(text);
  std::u32string word;
  while (ids.size() < max_tokens && words.next(word)) append_pieces(word, ids);
  ids.resize(std::min(ids.size(), max_tokens - 1));
  ids.push_back(end_);
  return ids;
}

void WordPiece::append_pieces(std::u32string_view word, std::vector<int32_t>& ids) const {
  const size_t before = ids.size();
  std::string rest_of_word;
  for (char32_t c : word) unicode::append_utf8(rest_of_word, c);
  std::string_view rest = rest_of_word;
  bool is_known = word.size() <= kMaxCharacters;
  while (is_known && !rest.empty()) {
    const Ids& table = ids.size() == before ? starts_ : continued_;
    size_t length = std::min(rest.size(), longest_);
    auto at = table.end();
    for (; length > 0 && at == table.end(); --length) at = table.find(rest.substr(0, length));
    is_known = at != table.end();
    if (!is_known) break;
    ids.push_back(at->second);
    rest.remove_prefix(at->first.size());
  }
  if (is_known) return;
  ids.resize(before);
  ids.push_back(unknown_);
}

}  // namespace minilm
