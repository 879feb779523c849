#include <catch2/catch.hpp>
#include <regex>

#include "tests/topologies/imported.hpp"

/// Laws of every importer.
namespace stepcast::tests::importer_test {
namespace {

/// An import of anything ends in a cluster, or in an error that starts with file, line and column.
void check_survives(ClusterReader reader, const std::string& text) {
  static const std::regex kPlace("broken:[1-9][0-9]*:[1-9][0-9]*: [^\n]+");
  try {
    const ImportedCluster imported = reader(text, "broken", {"h100-sxm"});
    if (imported.cluster.places().empty()) FAIL("a cluster without a place from: " << text);
  } catch (const InputError& error) {
    const std::string message = error.what();
    if (!std::regex_match(message, kPlace)) FAIL_CHECK("no line and column in: " << message);
  }
}

TEST_CASE("every file is recognised by one importer and becomes one host whose GPUs reach each other") {
  for (const std::string& name : reference_names()) {
    INFO(name);
    CHECK(is_nccl_xml(reference_text(name)) != is_nvidia_smi(reference_text(name)));
    CHECK(import_kind(recognised_importer(reference_text(name))->name).at("makes").text() == "cluster");
    const Cluster cluster = import_reference(name).cluster;
    CHECK(cluster.hosts.size() == 1);
    const Paths paths(cluster);
    const std::vector<int> places = cluster.places();
    for (const int a : places)
      for (const int b : places)
        if (a != b) CHECK_FALSE(paths.between(a, b).empty());
  }
}

TEST_CASE("a file that ends after any of its bytes is a cluster or an error with line and column") {
  for (const std::string& name : reference_names()) {
    INFO(name);
    const std::string text = reference_text(name);
    const ClusterReader reader = reader_of(text);
    for (std::size_t length = 0; length < text.size(); ++length)
      check_survives(reader, text.substr(0, length));
  }
}

TEST_CASE("a file with any byte changed, left out or doubled is a cluster or an error with line and column") {
  for (const std::string& name : reference_names()) {
    INFO(name);
    const std::string text = reference_text(name);
    const ClusterReader reader = reader_of(text);
    for (std::size_t at = 0; at < text.size(); ++at) {
      for (const char other : {'\0', 'X', '9', ' ', '\t', '\n', '<', '"', '-', '\x1b', '\xff'}) {
        std::string broken = text;
        broken[at] = other;
        check_survives(reader, broken);
      }
      check_survives(reader, text.substr(0, at) + text.substr(at + 1));
      check_survives(reader, text.substr(0, at) + text[at] + text.substr(at));
    }
  }
}

}  // namespace
}  // namespace stepcast::tests::importer_test
