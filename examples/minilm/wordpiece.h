// BERT's uncased tokeniser: text becomes words without case and accents, and words become the longest pieces that the
// vocabulary has, greedily from the left.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace minilm {

class WordPiece {
 public:
  /// Most tokens of one sentence, [CLS] and [SEP] included; the rest of a longer one is cut off.
  static constexpr size_t kMaxTokens = 256;

  /// `vocabulary` is the text of a vocab.txt: one piece per line, the line's number is its id; a piece that continues a
  /// word begins with "##". Throws ejk::InvalidArgument when it is not that.
  explicit WordPiece(std::string_view vocabulary);
  static WordPiece from_file(const std::string& path);

  /// [CLS], the ids of the text's pieces, [SEP]. A word that cannot be put together from pieces is [UNK]. Any bytes
  /// will do: what is no UTF-8 is left out. What looks like a special token ("[SEP]") is text like any other.
  std::vector<int32_t> encode(std::string_view text, size_t max_tokens = kMaxTokens) const;

  size_t size() const { return size_; }

 private:
  /// Lets the tables be asked with a view of a word, without making a string of it.
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };
  using Ids = std::unordered_map<std::string, int32_t, Hash, std::equal_to<>>;

  int32_t special(std::string_view token) const;
  void append_pieces(std::u32string_view word, std::vector<int32_t>& ids) const;

  size_t size_ = 0;
  size_t longest_ = 0;      // bytes of the longest piece
  Ids starts_, continued_;  // continued_ without the "##"
  int32_t unknown_ = 0, begin_ = 0, end_ = 0;
};

}  // namespace minilm
