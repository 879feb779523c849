#include "tests/fuzz/targets.hpp"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "core/csv.hpp"
#include "core/error.hpp"
#include "core/file.hpp"
#include "core/importer.hpp"
#include "core/yaml.hpp"
#include "models/exported_program.hpp"
#include "models/model.hpp"
#include "models/settings.hpp"
#include "records/bench.hpp"
#include "records/calibration.hpp"
#include "records/result.hpp"
#include "records/trace.hpp"
#include "sim/evidence/accuracy.hpp"
#include "sim/evidence/compare.hpp"
#include "sim/evidence/rows.hpp"
#include "sim/plan/launch_reader.hpp"
#include "sim/plan/search.hpp"
#include "sim/replay/convention.hpp"
#include "sim/replay/prediction_options.hpp"
#include "sim/replay/profile.hpp"
#include "sim/study/rows.hpp"
#include "sim/study/study.hpp"
#include "sim/train/failures.hpp"
#include "tests/fuzz/mutate.hpp"
#include "tests/kineto/written_profile.hpp"
#include "topologies/cluster.hpp"
#include "topologies/devices.hpp"

namespace stepcast::fuzz {
namespace {

namespace fs = std::filesystem;
using Seeds = std::vector<std::string>;

fs::path source() { return STEPCAST_SOURCE_DIR; }

/// Arrays thinned to so many elements.
void shorten(nlohmann::json& json, std::size_t most) {
  if (json.is_array() && json.size() > most) {
    nlohmann::json thin = nlohmann::json::array();
    for (std::size_t i = 0; i < most; ++i) thin.push_back(json[i * json.size() / most]);
    json = std::move(thin);
  }
  for (auto& inner : json)
    if (json.is_structured()) shorten(inner, most);
}

/// At most 8 kB of a text: JSON with shorter arrays, whole lines of a table; "" if others are longer.
std::string short_form(const std::string& text, bool is_table = false) {
  if (text.size() <= kLongest) return text;
  if (is_table) return text.substr(0, text.rfind('\n', kLongest) + 1);
  if (const auto json = nlohmann::json::parse(text, nullptr, false); !json.is_discarded())
    for (const std::size_t most : {32, 16, 8, 4, 2, 1}) {
      nlohmann::json shorter = json;
      shorten(shorter, most);
      if (std::string result = shorter.dump(); result.size() <= kLongest) return result;
    }
  return "";
}

/// Short forms of files of the repository: a path, or all files of a folder with one of these endings.
Seeds seeds_of(const std::vector<std::string>& places, const Seeds& endings = {""}) {
  Seeds seeds;
  const auto add = [&](const fs::path& file) {
    if (std::string text = short_form(file_head(file.string()), file.extension() == ".csv"); !text.empty())
      seeds.push_back(std::move(text));
  };
  for (const std::string& place : places) {
    const fs::path path = source() / place;
    if (!fs::is_directory(path)) {
      add(path);
      continue;
    }
    std::vector<fs::path> files;
    for (const auto& entry : fs::directory_iterator(path)) files.push_back(entry.path());
    std::ranges::sort(files);
    for (const fs::path& file : files)
      if (fs::is_regular_file(file) && std::ranges::any_of(endings, [&](const std::string& ending) {
            return file.string().ends_with(ending);
          }))
        add(file);
  }
  return seeds;
}

/// Configurations and accepted launch files that tests hold in one file each. Options of the command line are
/// a comment of the launch file.
Seeds configurations() {
  Seeds seeds;
  for (const auto& one :
       nlohmann::json::parse(read_file(source() / "tests/models/reference/configurations.json")))
    if (std::string text = one.at("config").dump(); text.size() <= kLongest) seeds.push_back(std::move(text));
  return seeds;
}

Seeds launch_files() {
  Seeds seeds;
  for (const auto& program : nlohmann::json::parse(read_file(source() / "tests/plan/launch_files.json")))
    for (const auto& file : program.at("files")) {
      if (file.contains("refused")) continue;
      std::string text;
      for (const auto& line : file.at("lines")) text += line.get<std::string>() + "\n";
      for (const auto& [option, value] : file.at("given").items())
        text += "# stepcast: --" + option + "=" + value.get<std::string>() + "\n";
      if (text.size() <= kLongest) seeds.push_back(std::move(text));
    }
  return seeds;
}

/// Valid inputs of an importer: those of the repository that are recognised as its kind.
Seeds recognised_as(const std::string& kind) {
  Seeds all = seeds_of({"tests/topologies/reference", "tests/evidence/nccl_tests", "tests/models/reference",
                        "tests/fuzz/seeds"},
                       {".txt", ".xml", ".json", ".pt2", ".csv", ".et"});
  for (const Seeds& more : {configurations(), launch_files()})
    all.insert(all.end(), more.begin(), more.end());
  tests::WrittenProfile profile{.layers = {{{32, 16}, 100.0, 200.0}, {{8, 32}, 300.0, 400.0}}, .steps = 1};
  for (const double all_reduce : {0.0, 80.0}) {
    profile.all_reduce = all_reduce;
    profile.ranks = all_reduce > 0.0 ? 2 : 1;
    all.push_back(profile.json().dump());
  }
  std::erase_if(all, [&](const std::string& text) {
    const auto* found = recognised_importer(text);
    return found == nullptr || found->name != kind;
  });
  return all;
}

/// Reads as `import --as KIND` does, and where that error message names --device with one; then what was made
/// of it, as another command would.
void import(const std::string& kind, const std::string& path) {
  const Importer& importer = importers().find(kind);
  const std::string makes = import_kind(kind).text_or("makes", "");
  Imported imported;
  try {
    imported = importer.read({path}, {});
  } catch (const InputError& error) {
    if (std::string_view(error.what()).find("--device") == std::string_view::npos) throw;
    const bool volta = read_file(path).find("sm=\"70\"") != std::string::npos;
    imported = importer.read({path}, {{"device", volta ? "v100-sxm" : "h100-sxm"}});
  }
  if (makes.empty()) return;
  if (!imported.obstacles.empty()) throw InputError("{}", imported.obstacles.front());
  const std::string made = path + ".made.yaml";
  std::ofstream(made) << imported.text;
  if (makes == "cluster") load_cluster(made);
  if (makes == "model") load_model(made);
}

std::vector<Target> import_targets() {
  std::vector<Target> all;
  for (const auto& entry : importers().entries()) {
    Target target{
        .name = "import " + entry.name, .ending = ".txt", .seeds = recognised_as(entry.name), .read = {}};
    target.read = [kind = entry.name](const std::string& path) { import(kind, path); };
    target.refuses = !import_kind(entry.name).has("use");
    all.push_back(std::move(target));
  }
  return all;
}

Target json_target(const std::string& name, const Seeds& seeds,
                   std::function<void(const std::string&)> read) {
  return {.name = name, .ending = ".json", .seeds = seeds, .read = std::move(read)};
}
Target yaml_target(const std::string& name, const Seeds& seeds,
                   std::function<void(const std::string&)> read) {
  return {.name = name, .ending = ".yaml", .seeds = seeds, .read = std::move(read)};
}

std::vector<Target> record_targets() {
  const std::string inputs = "tests/golden/inputs";
  return {
      json_target("trace", seeds_of({inputs}, {".trace.json"}),
                  [](const std::string& path) { load_trace(path); }),
      json_target("calibration", seeds_of({inputs}, {".calibration.json"}),
                  [](const std::string& path) { load_calibration(path); }),
      json_target("result", seeds_of({"tests/fuzz/seeds"}, {".result.json"}),
                  [](const std::string& path) { load_result_file(path); }),
      json_target("bench", seeds_of({"tests/fuzz/seeds"}, {".bench.json"}),
                  [](const std::string& path) { load_bench(path); }),
      json_target("profile", seeds_of({"tests/fuzz/seeds"}, {".layers.json"}),
                  [model = load_model("opt:layers=2")](const std::string& path) {
                    if (is_profile(path)) trace_of_profile(path, model);
                  }),
      json_target("hugging face", configurations(),
                  [](const std::string& path) { load_model("hf:" + path + ":sequence=16"); }),
  };
}

/// Options of `predict`, all of which matter.
StudyVocabulary vocabulary() {
  StudyVocabulary words{.options = {},
                        .switches = {"exact", "extrapolate"},
                        .matters = [](const std::string&, const Assignment&) { return true; },
                        .model_of_rank = [](const Assignment& point) { return point.value_or("model", ""); }};
  for (const KnownOption& known : known_options()) words.options.push_back(known.option.name);
  for (const PredictionOption& option : prediction_options()) words.options.push_back(option.name);
  return words;
}

/// Studies that are like no other: that one would have to be in the same folder.
Seeds studies() {
  Seeds seeds = seeds_of({"studies"}, {".yaml"});
  std::erase_if(seeds, [](const std::string& text) {
    return text.starts_with("like:") || text.find("\nlike:") != std::string::npos;
  });
  return seeds;
}

std::vector<Target> description_targets() {
  const std::string inputs = "tests/golden/inputs";
  return {
      yaml_target("model", seeds_of({"models"}, {".yaml"}),
                  [](const std::string& path) { load_model(path); }),
      yaml_target("own model", seeds_of({"tests/fuzz/seeds"}, {".model.yaml"}),
                  [](const std::string& path) { load_model(path); }),
      json_target("exported program", seeds_of({"tests/fuzz/seeds"}, {".exported.json"}),
                  [](const std::string& path) { to_text(read_exported(read_file(path), path).model); }),
      yaml_target("cluster", seeds_of({"topologies", inputs}, {".yaml"}),
                  [](const std::string& path) { load_cluster(path); }),
      yaml_target("study", studies(),
                  [words = vocabulary()](const std::string& path) { load_study(path, words); }),
      yaml_target("rows", seeds_of({"studies/published"}, {".yaml"}),
                  [](const std::string& path) { read_rows(path); }),
      yaml_target("rows of a table", seeds_of({"studies/measured/torchtitan.yaml"}),
                  [](const std::string& path) {
                    read_rows(path, (source() / "studies/measured/torchtitan.csv").string());
                  }),
      {.name = "rows csv",
       .ending = ".csv",
       .seeds = seeds_of({"tests/fuzz/seeds"}, {".rows.csv"}),
       .read = [](const std::string& path) { read_rows(path); }},
      {.name = "csv",
       .ending = ".csv",
       .seeds = seeds_of({"studies/measured"}, {".csv"}),
       .read = [](const std::string& path) { read_csv(path); }},
      yaml_target(
          "convention", seeds_of({"conventions"}, {".yaml"}),
          [](const std::string& path) {
            static_cast<void>(Convention(path).added_to({{"strategy", "ddp"}, {"model", "gpt2-small"}}));
          }),
      yaml_target("device", seeds_of({"tests/fuzz/seeds"}, {".device.yaml"}),
                  [](const std::string& path) { add_device(path); }),
      yaml_target("failures", seeds_of({"reliability"}, {".yaml"}),
                  [](const std::string& path) { load_failures(path); }),
      yaml_target("accuracy", seeds_of({"studies/measured/accuracy.yaml"}),
                  [](const std::string& path) { read_accuracy(path); }),
      yaml_target("launch options", launch_files(),
                  [](const std::string& path) { read_launch_file(path, {}); }),
  };
}

}  // namespace

Registry<std::function<Target()>>& more_targets() {
  static Registry<std::function<Target()>> registry("target");
  return registry;
}

std::vector<Target> targets() {
  std::vector<Target> all;
  for (const auto& entry : more_targets().entries()) all.push_back(entry.value());
  for (auto* part : {import_targets, record_targets, description_targets})
    for (Target& target : part()) {
      if (target.seeds.empty()) throw InputError("target '{}' has no seeds", target.name);
      all.push_back(std::move(target));
    }
  return all;
}

}  // namespace stepcast::fuzz
