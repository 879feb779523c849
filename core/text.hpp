#pragma once

#include <algorithm>
#include <cstddef>
#include <map>
#include <string>
#include <string_view>

/// Texts as sequences of characters, and as parts of XML.
namespace stepcast {

/// Whether a byte of UTF-8 begins a character.
inline bool starts_character(char c) { return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U; }

/// Number of characters of a UTF-8 text.
inline std::size_t characters_of(std::string_view text) {
  return static_cast<std::size_t>(std::ranges::count_if(text, starts_character));
}

/// XML between tags or in double quotes. Characters that XML does not allow become question marks.
inline std::string xml_escaped(std::string_view text) {
  static const std::map<char, std::string> kEntities{
      {'&', "&amp;"}, {'<', "&lt;"}, {'>', "&gt;"}, {'"', "&quot;"}, {'\'', "&#39;"}};
  std::string xml;
  for (const char c : text) {
    const auto entity = kEntities.find(c);
    const bool control = static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t';
    xml += entity != kEntities.end() ? entity->second : std::string(1, control ? '?' : c);
  }
  return xml;
}

}  // namespace stepcast
