#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/expression.hpp"
#include "sim/strategies/options.hpp"

/// Conventions: options that a project's published recipes set (`--like megatron`). One file each, in
/// conventions/.
namespace stepcast {

/// Options of `predict` with those that a convention sets added, and what was added.
struct LikeOptions {
  OptionTexts options;
  std::string note;  ///< `megatron: zero 1, gather_again=1`
};

/// What each convention sets, for `help conventions`.
std::string conventions_text();

/// A file with the key `like` begins with the entries of the shipped convention of that name.
class Convention {
 public:
  /// \param name in conventions/, or a file \throws UsageError for an unknown one \throws InputError for a
  /// file that is not valid
  explicit Convention(const std::string& name);

  /// Program of launchers/ that runs it; "": not named.
  [[nodiscard]] const std::string& program() const { return program_; }
  /// Options and settings of the model that it sets under some condition.
  [[nodiscard]] const std::set<std::string>& names() const { return names_; }
  /// Adds options whose conditions hold and that are not given; an entry whose conditions name its own option
  /// replaces it. Conditions read the options, and the mesh: `tensor`, `context`, `expert`, `data`, `shard`,
  /// `pipeline`, `shards` = shard x context, and `replicas` = world size / (pipeline x tensor). Settings of a
  /// model that lacks them are left out. Conditions read a precision without `gather`, `master`, `optimizer`
  /// and `scope`. These stay as given when an entry replaces the rest.
  [[nodiscard]] LikeOptions added_to(const OptionTexts& options) const;

 private:
  void read(const std::string& name);

  struct Entry {
    std::string name;
    YamlNode value;
    std::optional<Condition> condition;
    bool refines;  ///< its conditions name its own option
    bool setting;  ///< of the model
  };

  std::string name_, program_;
  std::vector<Entry> entries_;
  std::set<std::string> names_;
  mutable std::map<std::string, std::map<std::string, std::int64_t>> settings_{};  ///< of loaded models
};

}  // namespace stepcast
