#include <utility>

#include "core/file.hpp"
#include "sim/cli/command.hpp"
#include "sim/cli/option.hpp"
#include "topologies/cluster_text.hpp"

namespace stepcast::topology_command {
namespace {

void generate(const std::string& name, const po::variables_map& values) {
  if (values.count("format") != 0) throw UsageError("'topology generate' has no option --format");
  write_or_print(values, written_line() + to_yaml(load_cluster(name)));
}

void export_cluster(const std::string& name, const po::variables_map& values) {
  if (values.count("format") == 0) throw UsageError("--format is missing: simgrid");
  if (const std::string format = text_option(values, "format"); format != "simgrid")
    throw UsageError(unknown_name("format", format, {"simgrid"}));
  write_or_print(values, to_simgrid_xml(load_cluster(name)));
}

ExitCode run(const po::variables_map& values) {
  static const std::vector<std::pair<std::string, void (*)(const std::string&, const po::variables_map&)>>
      kActions{{"generate", generate}, {"export", export_cluster}};
  const auto& action = action_option(values, "topology", kActions);
  const std::vector<std::string> words = texts_option(values, "words");
  if (words.size() != 2)
    throw UsageError("'topology {}' takes one cluster, got {}; see 'stepcast help topology'", words[0],
                     words.size() - 1);
  check_output(values);
  action.second(words[1], values);
  return ExitCode::kDone;
}

const Registration<Command> kTopology{commands(), "topology", {.run = run}, 23};

}  // namespace
}  // namespace stepcast::topology_command
