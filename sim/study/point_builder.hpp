#pragma once

#include <set>
#include <string>
#include <vector>

#include "sim/study/study.hpp"

/// From assignments to the points of a study.
namespace stepcast {

/// Adds points to a study, one by one. Leaves out those that rules skip or that repeat others.
class PointBuilder {
 public:
  /// \pre `study.parts` is read; `study` and `vocabulary` outlive it
  PointBuilder(Study& study, const StudyVocabulary& vocabulary, std::vector<SkipRule> rules)
      : study_(study), vocabulary_(vocabulary), rules_(std::move(rules)) {}

  /// \param only points whose names contain it
  /// \throws InputError if an expression has no value, or two points that run share a name or options
  void add(const Assignment& assigned, const std::string& only);
  /// Whether an expression uses the name.
  [[nodiscard]] bool is_used(const std::string& name) const { return used_.contains(name); }

 private:
  Assignment expanded(const Assignment& assigned, std::string& problem);
  [[nodiscard]] bool take_options(StudyPoint& point) const;

  Study& study_;
  const StudyVocabulary& vocabulary_;
  std::vector<SkipRule> rules_;
  std::set<Assignment> assigned_;
  std::set<std::string> used_, names_, keys_;
};

}  // namespace stepcast
