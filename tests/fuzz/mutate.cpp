#include "tests/fuzz/mutate.hpp"

#include <algorithm>
#include <array>
#include <cctype>

namespace stepcast::fuzz {
namespace {

using Random = std::mt19937_64;

std::size_t below(std::size_t end, Random& random) {
  return end == 0 ? 0 : std::uniform_int_distribution<std::size_t>(0, end - 1)(random);
}

/// Values at which readers tend to fail.
const std::vector<std::string>& words() {
  static const std::vector<std::string> kWords{"0",
                                               "-1",
                                               "1",
                                               "2147483647",
                                               "2147483648",
                                               "-2147483649",
                                               "9223372036854775807",
                                               "18446744073709551616",
                                               "1e308",
                                               "1e-308",
                                               "1e999",
                                               "nan",
                                               "inf",
                                               "-0.0",
                                               "0x10",
                                               "1e9GB",
                                               "0s",
                                               "-5ms",
                                               "\"\"",
                                               "''",
                                               "null",
                                               "~",
                                               "true",
                                               "[]",
                                               "{}",
                                               "[[[[",
                                               "{{{{",
                                               "]",
                                               "}",
                                               ": ",
                                               "- ",
                                               "&a",
                                               "*a",
                                               "<<: *a",
                                               "!!binary x",
                                               "$X",
                                               "${X}",
                                               "$((1/0))",
                                               "\\",
                                               "\"",
                                               "'",
                                               "#",
                                               "\t",
                                               "\r\n",
                                               "\n\n",
                                               "<",
                                               ">",
                                               "&lt;",
                                               "<!--",
                                               "\xef\xbb\xbf",
                                               "\xff\xfe",
                                               "\xc3\x28",
                                               "%s%n",
                                               "../../../x",
                                               "{i}",
                                               "a/0"};
  return kWords;
}

/// Begin and end of the run of similar characters around a place.
std::pair<std::size_t, std::size_t> word_at(const std::string& text, std::size_t place) {
  const auto is_word = [&](std::size_t i) {
    const auto c = static_cast<unsigned char>(text[i]);
    return std::isalnum(c) != 0 || c == '_' || c == '.' || c == '-';
  };
  std::size_t begin = place, end = place;
  while (begin > 0 && is_word(begin - 1)) --begin;
  while (end < text.size() && is_word(end)) ++end;
  return {begin, end};
}

std::pair<std::size_t, std::size_t> line_at(const std::string& text, std::size_t place) {
  const std::size_t before = place == 0 ? std::string::npos : text.rfind('\n', place - 1);
  const std::size_t begin = before == std::string::npos ? 0 : before + 1;
  const std::size_t end = text.find('\n', place);
  return {begin, end == std::string::npos ? text.size() : end + 1};
}

void change_bytes(std::string& text, Random& random) {
  const std::size_t place = below(text.size(), random);
  switch (below(4, random)) {
    case 0:
      text[place] = static_cast<char>(text[place] ^ (1 << below(8, random)));
      break;
    case 1:
      text[place] = static_cast<char>(below(256, random));
      break;
    case 2:
      text.insert(place, 1, static_cast<char>(below(256, random)));
      break;
    default:
      text.erase(place, 1 + below(8, random));
  }
}

void change_words(std::string& text, const std::string& other, Random& random) {
  const auto [begin, end] = word_at(text, below(text.size(), random));
  std::string word = words()[below(words().size(), random)];
  const std::size_t choice = below(4, random);
  if (choice == 0) {
    const auto [from, to] = word_at(other, below(other.size(), random));
    word = other.substr(from, to - from);
  } else if (choice == 1) {
    word = text.substr(begin, end - begin) + word;
  } else if (choice == 2) {
    word.clear();
  }
  text.replace(begin, end - begin, word);
}

void change_lines(std::string& text, const std::string& other, Random& random) {
  const auto [begin, end] = line_at(text, below(text.size(), random));
  const std::string line = text.substr(begin, end - begin);
  switch (below(5, random)) {
    case 0:
      text.erase(begin, end - begin);
      break;
    case 1:
      text.insert(begin, line);
      break;
    case 2:
      text.erase(begin, end - begin);
      text.insert(line_at(text, below(text.size(), random)).first, line);
      break;
    case 3:
      text.insert(begin, 1 + below(6, random), ' ');
      break;
    default: {
      const auto [from, to] = line_at(other, below(other.size(), random));
      text.insert(begin, other.substr(from, to - from));
    }
  }
}

void change_parts(std::string& text, const std::string& other, Random& random) {
  const std::size_t place = below(text.size(), random);
  switch (below(3, random)) {
    case 0:
      text.resize(place);
      break;
    case 1:
      text.insert(place, text.substr(below(text.size(), random), below(256, random)));
      break;
    default:
      text = text.substr(0, place) + other.substr(below(other.size(), random));
  }
}

}  // namespace

std::string mutated(const std::vector<std::string>& seeds, Random& random) {
  std::string text = seeds[below(seeds.size(), random)];
  const std::string& other = seeds[below(seeds.size(), random)];
  const std::size_t times = std::size_t{1} << below(4, random);
  for (std::size_t i = 0; i < times; ++i) {
    if (text.empty()) text = " ";
    const std::size_t kind = below(10, random);
    if (kind < 3)
      change_bytes(text, random);
    else if (kind < 7)
      change_words(text, other, random);
    else if (kind < 9)
      change_lines(text, other, random);
    else
      change_parts(text, other, random);
  }
  if (text.size() > kLongest) text.resize(kLongest);
  return text;
}

}  // namespace stepcast::fuzz
