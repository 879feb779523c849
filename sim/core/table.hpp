#pragma once

#include <string>
#include <vector>

namespace stepcast {

/// A table for people: right-aligned numbers, left-aligned words, header with units.
class Table {
 public:
  explicit Table(std::vector<std::string> header);
  void add(std::vector<std::string> row);
  [[nodiscard]] std::string text() const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

/// `1.4 %` of 0.014.
std::string percent_text(double ratio);
/// `+1.4 %` of 0.014, `-1.4 %` of -0.014; what rounds to nothing is `0.0 %`.
std::string signed_percent_text(double ratio);

}  // namespace stepcast
