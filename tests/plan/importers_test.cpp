#include <catch2/catch.hpp>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "core/file.hpp"
#include "core/importer.hpp"
#include "core/table.hpp"
#include "models/chakra.hpp"
#include "tests/kineto/written_profile.hpp"
#include "tests/temporary_folder.hpp"
#include "tests/worlds.hpp"

/// Laws of every importer.
namespace stepcast::importers_test {
using namespace worlds;
namespace {

const std::string kTests = std::string(STEPCAST_SOURCE_DIR) + "/tests/";

/// Texts of every kind, by the name of the importer that reads them.
std::vector<std::pair<std::string, std::string>> known_texts() {
  const tests::WrittenProfile profile{.layers = {{{32, 16}, 100.0, 200.0}, {{8, 32}, 300.0, 400.0}}};
  std::vector<std::pair<std::string, std::string>> texts{
      {"kineto", profile.json().dump()},
      {"torch-costs",
       R"({"torch_costs": "2.6.0", "backend": "gloo", "world_size": 2, "ranks_on_machine": 2, "cores": 2,
          "samples": [
          {"probe": "ping_pong", "bytes": 4, "time_s": [2e-5, 3e-5, 4e-5], "cpu_s": [2e-5, 2e-5, 2e-5]},
          {"probe": "exchange", "bytes": 4, "time_s": [2e-5, 3e-5, 4e-5], "cpu_s": [2e-5, 2e-5, 2e-5]}]})"},
      {"torch", read_file(kTests + "models/reference/residual.pt2")},
      {"chakra", chakra_text({{.id = 1, .name = "forward", .duration_s = 1e-3},
                              {.id = 2, .name = "backward", .after = {1}, .duration_s = 2e-3}})},
      {"rocm-smi",
       "=== Weight between two GPUs ===\n       GPU0   GPU1\nGPU0   0      15\nGPU1   15     0\n"}};
  for (const auto& file : std::filesystem::directory_iterator(kTests + "topologies/reference"))
    texts.emplace_back(file.path().extension() == ".xml" ? "nccl-xml" : "nvidia-smi", read_file(file.path()));
  for (const auto& file : std::filesystem::directory_iterator(kTests + "evidence/nccl_tests"))
    texts.emplace_back("nccl-tests", read_file(file.path()));
  for (const nlohmann::json& one :
       nlohmann::json::parse(read_file(kTests + "models/reference/configurations.json")))
    texts.emplace_back("hf", one["config"].dump());
  for (const nlohmann::json& group : nlohmann::json::parse(read_file(kTests + "plan/launch_files.json")))
    texts.emplace_back("launch",
                       joined(group["files"][0]["lines"].get<std::vector<std::string>>(), "\n") + "\n");
  return texts;
}

}  // namespace

TEST_CASE("costs of torch that no calibration may contain are refused", "[plan]") {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/costs.json";
  std::string text = known_texts()[1].second;
  text.replace(text.find("\"ranks_on_machine\": 2"), 21, "\"ranks_on_machine\": 5");
  write_file(path, text, true);
  CHECK_THAT(error_of([&] { return importers().find("torch-costs").read({path}, {}); }),
             Catch::Contains("costs.json") && Catch::Contains("at most world_size"));
}

TEST_CASE("every importer has texts that it recognises, an example and a use", "[plan]") {
  std::set<std::string> seen;
  for (const auto& [kind, text] : known_texts()) {
    INFO(text.substr(0, 300));
    const auto* found = recognised_importer(text);
    REQUIRE(found != nullptr);
    CHECK(found->name == kind);
    seen.insert(kind);
  }
  for (const auto& entry : importers().entries()) {
    INFO(entry.name);
    CHECK(seen.contains(entry.name));
    const YamlNode kind = import_kind(entry.name);
    CHECK_FALSE(kind.at("description").text().empty());
    CHECK_FALSE(kind.at("example").text().empty());
    CHECK((!kind.has("makes") || kind.has("use")));
  }
  CHECK(recognised_importer("hello\n") == nullptr);
  CHECK(recognised_importer("{\"a\": 1}\n") == nullptr);
}

TEST_CASE("an import of a cut or changed file ends in a result or in an error that names the file",
          "[plan]") {
  const TemporaryFolder folder;
  for (const auto& [kind, text] : known_texts()) {
    const Importer& importer = importers().find(kind);
    ImportTexts options;
    for (const YamlNode& option : import_kind(kind).items("options"))
      if (option.text() == "device") options["device"] = "h100-sxm";
    const std::size_t step = text.size() / 12 + 1;
    for (std::size_t at = 0; at < text.size(); at += step)
      for (const std::string& broken : {text.substr(0, at), text.substr(0, at) + "9" + text.substr(at),
                                        text.substr(0, at) + "\x1b\"$(" + text.substr(at + 1)}) {
        const std::string path = folder.write("broken", broken);
        const std::string complaint = error_of([&] { importer.read({path}, options); });
        INFO(kind << " at " << at);
        CHECK((complaint.empty() || complaint.find(path) != std::string::npos));
      }
  }
}

}  // namespace stepcast::importers_test
