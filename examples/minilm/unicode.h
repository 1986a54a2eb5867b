// The part of Unicode that BERT's uncased tokeniser rests on: UTF-8, character classes, and letters without case and
// accents.
#pragma once

#include <string>
#include <string_view>

namespace minilm::unicode {

/// What an invalid byte decodes to. Text normalisation drops it, as BERT's does.
inline constexpr char32_t kReplacement = 0xFFFD;

/// Takes the first character off `text`, which is not empty. Every byte that belongs to no well-formed character
/// (overlong, surrogate, beyond U+10FFFF, cut short) is one replacement character.
char32_t take_character(std::string_view& text);
void append_utf8(std::string& text, char32_t c);

/// White space, as Unicode has it, less the control characters among it other than tab, line feed and carriage return.
bool is_space(char32_t c);
/// Characters that leave no trace: controls, formats such as the soft hyphen, private use, the replacement character.
bool is_removed(char32_t c);
/// Nonspacing marks of the basic plane, accents above all (category Mn).
bool is_mark(char32_t c);
/// Punctuation of the basic plane (category P), and every ASCII character that is neither letter, digit nor space.
bool is_punctuation(char32_t c);
/// Ideographs, each of which is a word of its own. Kana and Hangul are not.
bool is_ideograph(char32_t c);

/// Appends the lower-case letter without its accents: "É" gives "e", "й" gives "и", "が" gives "か", "한" its three
/// jamo. Knows Latin, Greek, Cyrillic, Armenian, Arabic, kana and Hangul; what it does not know stays as it is.
void append_folded(std::u32string& text, char32_t c);

}  // namespace minilm::unicode
