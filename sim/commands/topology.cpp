#include <algorithm>
#include <filesystem>
#include <iostream>
#include <utility>

#include "core/file.hpp"
#include "records/run_context.hpp"
#include "sim/cli/command.hpp"
#include "sim/cli/option.hpp"
#include "topologies/cluster_text.hpp"
#include "topologies/importer.hpp"

namespace stepcast {
namespace {

using Words = std::vector<std::string>;

/// Help of the words.
std::string describe_actions() {
  return "action and its argument:\n"
         "import FILE: turn another tool's description of a host into a cluster file\n"
         "show CLUSTER|FILE: print a cluster, or a file to import, as a tree with bandwidths\n"
         "generate CLUSTER: write a cluster with every node and link listed\n"
         "export CLUSTER|FILE: write it for another program\n"
         "CLUSTER is a shipped cluster or a .yaml file, with settings: h100x8-hgx:nodes=16";
}

std::string describe_formats() {
  return with_entries("of import, if the file does not show it; of export: simgrid", importers()) +
         "\nsimgrid: a platform file of SimGrid, XML version 4.1";
}

void declare(po::options_description& options) {
  // clang-format off
  options.add_options()
      ("words", po::value<Words>(), describe_actions().c_str())
      ("format", text_value(), describe_formats().c_str())
      ("device", text_value(),
       "of import: the GPUs, a name in topologies/devices/devices.yaml; default: guessed")
      ("smp-bandwidth", text_value(),
       "of import: between two sockets, as 22GB/s; default: as NCCL counts it for the CPU or its generation")
      ("pcie-generation", po::value<int>(), "of import: 1 to 6; default: the file's, or the device's")
      ("graphviz", text_value(), "of show: also write a graph for Graphviz, which 'dot -Tsvg' draws")
      ("output,o", text_value(), "file to write; else standard output")
      ("force", po::bool_switch(), "overwrite existing files");
  // clang-format on
}

ImportOptions import_options(const po::variables_map& values) {
  ImportOptions options;
  options.device = text_option(values, "device");
  if (values.count("smp-bandwidth") != 0) {
    options.smp_bandwidth = bytes_per_second_option(values, "smp-bandwidth");
    if (!(options.smp_bandwidth->count() > 0.0)) throw UsageError("--smp-bandwidth must be above 0");
  }
  if (values.count("pcie-generation") != 0) {
    options.pcie_generation = int_option(values, "pcie-generation", 1);
    if (options.pcie_generation > 6) throw UsageError("--pcie-generation must be at most 6");
  }
  return options;
}

/// Guesses are printed to standard error.
Cluster import_file(const std::string& path, const po::variables_map& values, const std::string& format) {
  Imported imported = import_cluster(read_file(path), path, format, import_options(values));
  for (const std::string& note : imported.notes) std::cerr << "stepcast: note: " << note << '\n';
  return std::move(imported.cluster);
}

/// A file that is not YAML is imported; other names are clusters.
Cluster load_or_import(const std::string& name, const po::variables_map& values) {
  const std::filesystem::path path(name);
  const bool importable =
      std::filesystem::is_regular_file(path) && path.extension() != ".yaml" && path.extension() != ".yml";
  if (importable) return import_file(name, values, "");
  for (const char* option : {"device", "smp-bandwidth", "pcie-generation"})
    if (values.count(option) != 0)
      throw UsageError("--{} is for files to import; '{}' is a cluster", option, name);
  return load_cluster(name);
}

/// Writes to -o, or to standard output.
void write(const po::variables_map& values, const std::string& text) {
  if (values.count("output") == 0)
    std::cout << text;
  else
    write_file(text_option(values, "output"), text, flag_option(values, "force"));
}

/// Cluster file with a line that states how it was written.
std::string cluster_file(const Cluster& cluster) {
  const RunContext context = make_run_context("", command_line());
  std::string words = joined(command_line(), " ");
  std::ranges::replace_if(
      words, [](char c) { return c == '\n' || c == '\r'; }, ' ');
  return fmt::format("# Written by stepcast {}: {}\n", context.stepcast.text(), words) + to_yaml(cluster);
}

/// Refuses options that the action does not have.
void allow_only(const po::variables_map& values, const std::string& action, const Words& allowed) {
  for (const char* option : {"format", "device", "smp-bandwidth", "pcie-generation", "graphviz", "output"})
    if (values.count(option) != 0 && std::ranges::count(allowed, option) == 0)
      throw UsageError("'topology {}' has no option --{}", action, option);
}

void import(const std::string& name, const po::variables_map& values) {
  allow_only(values, "import", {"format", "device", "smp-bandwidth", "pcie-generation", "output"});
  write(values, cluster_file(import_file(name, values, text_option(values, "format"))));
}

void show(const std::string& name, const po::variables_map& values) {
  allow_only(values, "show", {"device", "smp-bandwidth", "pcie-generation", "graphviz"});
  const Cluster cluster = load_or_import(name, values);
  if (values.count("graphviz") != 0)
    write_file(text_option(values, "graphviz"), to_graphviz(cluster), flag_option(values, "force"));
  std::cout << tree_text(cluster);
}

void generate(const std::string& name, const po::variables_map& values) {
  allow_only(values, "generate", {"output"});
  write(values, cluster_file(load_cluster(name)));
}

void export_cluster(const std::string& name, const po::variables_map& values) {
  allow_only(values, "export", {"format", "device", "smp-bandwidth", "pcie-generation", "output"});
  if (values.count("format") == 0) throw UsageError("--format is missing: simgrid");
  if (const std::string format = text_option(values, "format"); format != "simgrid")
    throw UsageError(unknown_name("format", format, {"simgrid"}));
  write(values, to_simgrid_xml(load_or_import(name, values)));
}

ExitCode run(const po::variables_map& values) {
  static const std::vector<std::pair<std::string, void (*)(const std::string&, const po::variables_map&)>>
      kActions{{"import", import}, {"show", show}, {"generate", generate}, {"export", export_cluster}};
  const auto& action = action_option(values, "topology", kActions);
  const Words words = texts_option(values, "words");
  if (words.size() != 2)
    throw UsageError("'topology {}' takes one {}, got {}; see 'stepcast help topology'", words[0],
                     words[0] == "import" ? "file" : "cluster", words.size() - 1);
  for (const char* file : {"output", "graphviz"})
    if (values.count(file) != 0) check_writable(text_option(values, file), flag_option(values, "force"));
  action.second(words[1], values);
  return ExitCode::kDone;
}

const Registration<Command> kTopology{
    commands(),
    {.name = "topology",
     .description = "Shows clusters, imports them from nvidia-smi and NCCL, and writes them out.",
     .value = {.declare = declare,
               .run = run,
               .positional = "words",
               .usage = "stepcast topology import FILE [--device NAME] [-o cluster.yaml]\n"
                        "       stepcast topology show CLUSTER|FILE [--graphviz graph.dot]\n"
                        "       stepcast topology generate CLUSTER [-o cluster.yaml]\n"
                        "       stepcast topology export CLUSTER|FILE --format simgrid [-o platform.xml]",
               .group = "Predict and compare"},
     .order = 23}};

}  // namespace
}  // namespace stepcast
