#include <iostream>
#include <nlohmann/json.hpp>

#include "sim/cli/command.hpp"
#include "sim/cli/examination.hpp"

namespace stepcast {
namespace {

void declare(po::options_description& options) {
  options.add_options()("json", po::bool_switch(), "print the findings as JSON");
}

ExitCode run(const po::variables_map& values) {
  const std::vector<Finding> findings = examine_machine();
  if (values["json"].as<bool>()) {
    nlohmann::json json = nlohmann::json::array();
    for (const Finding& finding : findings)
      json.push_back({{"what", finding.what},
                      {"verdict", to_text(finding.verdict)},
                      {"found", finding.found},
                      {"remedy", finding.remedy}});
    std::cout << json.dump(1) << '\n';
    return ExitCode::kDone;
  }
  Table table({"what", "verdict", "found"});
  std::string remedies;
  for (const Finding& finding : findings) {
    table.add({finding.what, to_text(finding.verdict), finding.found});
    if (!finding.remedy.empty()) remedies += "  " + finding.what + ": " + finding.remedy + "\n";
  }
  std::cout << table.text() << (remedies.empty() ? "\nNothing to mend.\n" : "\nTo mend:\n" + remedies);
  return ExitCode::kDone;
}

const Registration<Command> kDoctor{
    commands(),
    {.name = "doctor",
     .description = "Says what this machine can measure, and what is missing or misleading.",
     .thing = {.declare = declare, .run = run, .usage = "stepcast doctor", .group = "This machine"},
     .order = 1}};

}  // namespace
}  // namespace stepcast
