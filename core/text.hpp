#pragma once

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <initializer_list>
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

/// With ASCII letters in lower case.
inline std::string lower(std::string text) {
  std::ranges::transform(text, text.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

/// `optimizer state` of `optimizer_state`.
inline std::string spaced(std::string name) {
  std::ranges::replace(name, '_', ' ');
  return name;
}

/// True if one of `parts` is in the text.
inline bool contains_any(std::string_view text, std::initializer_list<const char*> parts) {
  return std::ranges::any_of(
      parts, [&](std::string_view part) { return text.find(part) != std::string_view::npos; });
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
