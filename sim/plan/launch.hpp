#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/expression.hpp"
#include "sim/plan/problem.hpp"

/// Plans as options of the programs that train.
namespace stepcast {

struct LaunchText {
  std::string file;                    ///< `megatron.txt`
  std::string program;                 ///< `Megatron-LM`
  std::string lines{};                 ///< flags or a configuration
  std::vector<std::string> missing;    ///< parts of the plan that the lines do not express
  std::vector<std::string> obstacles;  ///< parts of the plan that the program lacks
  std::string words{};                 ///< options of `predict` that the lines do not express
  /// The lines and what they do not express, also as options that `predict --from` reads; for a plan that the
  /// program cannot run, one line with the reasons.
  [[nodiscard]] std::string text() const;
};

/// A program that trains: a file of launchers/.
class Launcher {
 public:
  /// \param name of the file, without `.yaml` \throws UsageError for an unknown one
  Launcher(const std::string& name, PlanModels& models);

  [[nodiscard]] const std::string& program() const { return program_; }
  [[nodiscard]] const std::string& file() const { return file_; }
  LaunchText text(PlanModels& models, const Plan& plan) const;
  /// Parts of the plan that the program lacks; empty: it can run the plan.
  std::vector<std::string> obstacles(PlanModels& models, const Plan& plan) const;

 private:
  struct Line {
    YamlNode text;
    std::optional<Condition> condition;
  };
  using Lines = std::vector<Line>;

  static Lines read(const YamlNode& list, const std::vector<std::string>& names);
  static std::vector<std::string> texts_of(const Lines& lines, const Assignment& values);

  std::string name_, program_, file_;
  Lines lines_, missing_, obstacles_;
};

/// Names of the files of launchers/ that express plans.
std::vector<std::string> launcher_names();

/// All of these, or the given one alone.
std::vector<Launcher> launchers(PlanModels& models, const std::string& only = "");

}  // namespace stepcast
